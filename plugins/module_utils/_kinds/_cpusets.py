# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CPUs and memory nodes that a control group may use: systemd takes any list, and the kernel does not."""

from __future__ import annotations

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _properties
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, TuningError

NODES = "/sys/devices/system/node"
# For each property what it lists, what the kernel could ever have of it, and what it has now.
LISTS = {
    "AllowedCPUs": ("CPU", "/sys/devices/system/cpu/possible", "/sys/devices/system/cpu/online"),
    "AllowedMemoryNodes": ("node", "/sys/devices/system/node/possible", "/sys/devices/system/node/has_memory"),
}


def refuse(host: Host, setting: Setting) -> None:
    """Refuse what the host lacks: systemd would store it, the kernel would not take it, and nothing would be bound."""
    unit, name = setting.key.split()
    if name not in LISTS or not host.live:
        return
    wanted, could, has = _numbers(setting.value), _possible(host, name), _present(host, name)
    missing = wanted - could if could else set()
    if missing or (has and not wanted & has):
        raise TuningError(
            f"{unit} {name}: names {LISTS[name][0]} {_topology.format_cpus(missing or wanted)}, which this host does "
            f"not have; expected some of {_topology.format_cpus(has or could)}"
        )


def held(host: Host, name: str, said: str, text: str) -> str:
    """Return what the manager says where the file of the kernel amounts to the same, and else what that file has."""
    present = _present(host, name)
    same = _effect(_numbers(said), present) == _effect(_numbers(text), present)
    return said if same else _properties.ranges(_numbers(text))


def _effect(numbers: set[int], present: set[int]) -> set[int]:
    """Return what may be used: everything where nothing is named."""
    return numbers & present or present if present else numbers


def passing(host: Host, name: str, state: str) -> tuple[str, ...]:
    """Return the list to give first: all there can be, where processes run and the kernel would not take the state.

    That is an empty list, and one that names what the host does not have: it would keep the list that it holds.
    """
    could = _possible(host, name) if name in LISTS else set()
    return (_properties.ranges(could),) if could and not (state and _numbers(state) <= could) else ()


def _possible(host: Host, name: str) -> set[int]:
    """Return what the kernel could ever have."""
    return _numbers(host.glance(LISTS[name][1])) or _present(host, name)


def _present(host: Host, name: str) -> set[int]:
    """Return what the kernel has now; one without NUMA has node 0 and says nothing of it."""
    found = _numbers(host.glance(LISTS[name][2]))
    return found or ({0} if name == "AllowedMemoryNodes" and host.mode(NODES) is None else set())


def _numbers(text: str | None) -> set[int]:
    return set(_topology.parse_cpus(text))

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CPUs and memory nodes that a control group may use: systemd takes any list, and the kernel does not."""

from __future__ import annotations

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _properties
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, TuningError

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
    what, possible, present = LISTS[name]
    wanted, could, has = set(_topology.parse_cpus(setting.value)), _read(host, possible), _read(host, present)
    missing = wanted - could if could else set()
    if missing or (has and not wanted & has):
        raise TuningError(
            f"{unit} {name}: names {what} {_topology.format_cpus(missing or wanted)}, which this host does not have; "
            f"expected some of {_topology.format_cpus(has or could)}"
        )


def held(host: Host, name: str, said: str, text: str) -> str:
    """Return what the manager says where the file of the kernel amounts to the same, and else what that file has."""
    present = _read(host, LISTS[name][2])
    by_manager, by_kernel = (set(_topology.parse_cpus(words)) for words in (said, text))
    same = _effect(by_manager, present) == _effect(by_kernel, present)
    return said if same else _properties.ranges(by_kernel)


def _effect(numbers: set[int], present: set[int]) -> set[int]:
    """Return what may be used: everything where nothing is named."""
    return numbers & present or present if present else numbers


def on_the_way(host: Host, name: str, state: str) -> list[str]:
    """Return the states to give a list in turn: it cannot become empty while processes run, so it is complete first."""
    present = _read(host, LISTS[name][2]) if name in LISTS and not state else set()
    return [*([_properties.ranges(present)] if present else []), state]


def _read(host: Host, path: str) -> set[int]:
    return set(_topology.parse_cpus(host.glance(path)))

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn what depends on the host (a share of its memory or its tasks) into the number that it is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _properties
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, TuningError

GIB = 2**30
GRAIN = 65536  # the kernel rounds down to whole pages, and the largest common page is this


def resolve(host: Host, setting: Setting, settings: Sequence[Setting]) -> Setting:
    """Return the setting with a number; an image keeps per cent, which systemd turns into one at boot."""
    name = setting.key.split()[-1]
    if name in _properties.MEMORY and setting.value != _properties.INFINITY:
        return replace(setting, value=_memory(host, setting))
    if name.endswith("TasksMax") and setting.value.endswith("%") and host.live:
        return replace(setting, value=str(_share(_tasks(host, settings), setting.value)))
    return setting


def _memory(host: Host, setting: Setting) -> str:
    text = setting.value
    if text.isdigit():
        return str(int(text) // GRAIN * GRAIN)
    if not host.live:
        if text.endswith("%") and not text.startswith("reserve"):
            return text
        raise TuningError(f"{setting.key}: the memory of an image's host is not known; give bytes or per cent")
    ram = memory(host)
    amount = ram - reserve(ram, text.partition(":")[2]) if text.startswith("reserve") else _share(ram, text)
    if amount < GRAIN:
        raise TuningError(f"{setting.key}: {text} leaves nothing of the {ram} bytes of this host")
    return str(amount // GRAIN * GRAIN)


def memory(host: Host) -> int:
    """Return the bytes of memory of the host."""
    for line in (host.read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise TuningError("/proc/meminfo: does not say MemTotal, so a share of the memory cannot be worked out")


def reserve(ram: int, text: str = "") -> int:
    """Return what is kept for the system: at least 8 GiB or 5 %, never more than a quarter, or what was asked for."""
    if not text:
        return min(max(8 * GIB, ram // 20), ram // 4)
    return _share(ram, text) if text.endswith("%") else int(text)


def _share(whole: int, text: str) -> int:
    return int(whole * round(float(text[:-1]) * 100) // 10000)


def _tasks(host: Host, settings: Sequence[Setting]) -> int:
    """Return how many tasks the host can have, by what the same call makes of its limits."""
    most = []
    for key in ("kernel.pid_max", "kernel.threads-max"):
        text = (host.read(f"/proc/sys/{key.replace('.', '/')}") or "").strip()
        declared = [one for one in settings if (one.kind, one.key) == ("sysctl", key)]
        numbers = [int(text)] if text.isdigit() else []
        for one in declared:
            numbers = [max([int(one.value), *numbers])] if one.rule == "at_least" else [int(one.value)]
        most += numbers
    if not most:
        raise TuningError("/proc/sys/kernel: does not say pid_max, so a share of the tasks cannot be worked out")
    return min(most)

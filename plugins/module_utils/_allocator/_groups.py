# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The control groups of the caller and of named slices: which limits hold there, and which level they come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

from ansible_collections.gpu_fleet.node.plugins.module_utils import _cgroup
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._figures import Missing, group, number
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

UNLIMITED = 1 << 60  # version 1 prints a huge number instead of a word
Number = Union[int, float, None]
Reader = Callable[[Host, str], Number]


@dataclass(frozen=True)
class Limit:
    """A limit: its controller, and per version the file with the way to read it; None where a version has none."""

    name: str
    controller: str
    second: str
    first: str | None
    read: Reader


def _amount(host: Host, path: str) -> Number:
    """Read a number; a word (`max`) and the huge numbers of version 1 are no limit."""
    value = _read.number(host, path)
    return None if value is None or value < 0 or value >= UNLIMITED else value


def _quota(host: Host, path: str) -> Number:
    """Read the CPU time allowed, in CPUs: quota and period stand in one file or in two."""
    words = (_read.text(host, path) or "").split()
    period = words[1] if len(words) == 2 else _read.text(host, path.replace("quota", "period"))
    if not words or not words[0].isdigit() or not (period or "").isdigit():
        return None
    return round(int(words[0]) / int(period or 1), 2)


LIMITS = (
    Limit("memory_max", "memory", "memory.max", "memory.limit_in_bytes", _amount),
    Limit("memory_high", "memory", "memory.high", None, _amount),
    Limit("swap_max", "memory", "memory.swap.max", None, _amount),
    Limit("memory_and_swap_max", "memory", "", "memory.memsw.limit_in_bytes", _amount),
    Limit("tasks_max", "pids", "pids.max", "pids.max", _amount),
    Limit("cpu_quota", "cpu", "cpu.max", "cpu.cfs_quota_us", _quota),
)
CONTROLLERS = ("memory", "pids", "cpu", "cpuset")
CALLER = "caller"
MANAGER = "/init.scope"  # where systemd itself is
NAMED = f"{_cgroup.ROOT}/systemd"  # its own hierarchy on version 1
# What a group uses itself, with its children.
HERE = {
    "memory_current": ("memory", "memory.current", "memory.usage_in_bytes"),
    "tasks_current": ("pids", "pids.current", "pids.current"),
}
SETS = {
    "cpus": ("cpuset.cpus.effective", "cpuset.effective_cpus"),
    "memory_nodes": ("cpuset.mems.effective", "cpuset.effective_mems"),
}


def gather(scene: Scene) -> dict[str, Any]:
    """Return the layout of the hierarchy, and what holds for the caller and for each named slice."""
    host = scene.host
    paths = own_paths(_read.text(host, "/proc/self/cgroup") or "")
    version = _cgroup.version(host)
    none = None if version else f"{_cgroup.ROOT}: no hierarchy here has the memory controller"
    return {
        "layout": layout(host),
        "version": version,
        "source": _cgroup.ROOT,
        "reasons": {"version": none} if none else {},
        "caller": place(host, CALLER, lambda controller: paths.get(controller, paths.get("", "/"))),
        "slices": [_slice(host, name) for name in scene.options.slices],
    }


def layout(host: Host) -> str | None:
    """Return `unified`, `hybrid` or `legacy`: where systemd mounts version 2; None where there are no groups."""
    for folder, word in zip(_cgroup.UNIFIED, ("unified", "hybrid")):
        if host.mode(f"{folder}/cgroup.controllers") is not None:
            return word
    return "legacy" if _cgroup.version(host) == 1 else None


def own_paths(content: str) -> dict[str, str]:
    """Read /proc/PID/cgroup: the path for each controller of version 1, and under no name that of version 2."""
    rows = [line.split(":", 2) for line in content.splitlines() if line.count(":") >= 2]
    return {name: path for _number, names, path in rows for name in names.split(",")}


def manager_root(host: Host) -> str:
    """Return the group below which systemd keeps its slices: the root, but in a container without a view of its own."""
    paths = own_paths(_read.text(host, "/proc/1/cgroup") or "")
    own = paths.get("name=systemd", paths.get("", ""))
    return own[: -len(MANAGER)] if own.endswith(MANAGER) else ""


def _slice(host: Host, name: str) -> dict[str, Any]:
    if not name.endswith(".slice") or "/" in name or "--" in name:
        reason = f"{name}: is no name of a slice"
        missing = dict.fromkeys(("path", "active", "limits", *HERE, *SETS), Missing(reason))
        return group(_cgroup.ROOT, {"name": name, **missing, "reason": reason})
    path = (manager_root(host) + _cgroup.path(name)).rstrip("/") or "/"
    return place(host, name, lambda _controller: path)


def place(host: Host, name: str, where: Callable[[str], str]) -> dict[str, Any]:
    """Return what holds for the group that `where` names for each controller."""
    found = {controller: _levels(host, controller, where(controller)) for controller in CONTROLLERS}
    unseen = [controller for controller, levels in found.items() if levels and not levels[0].present]
    known = any(_read.names(host, f"{folder}{where('')}") for folder in (*_cgroup.UNIFIED, NAMED))
    active = known or any(levels and levels[0].present for levels in found.values())
    reason = None
    if name == CALLER and unseen:
        reason = "caller: a group of it is not visible from here, so only the limits of the levels above it are known"
    elif not active:
        reason = f"{name}: has no group now, so only the limits of the levels above it are known"
    elif unseen:
        reason = f"{name}: has no group under {', '.join(unseen)}, so limits of its own on these do not act now"
    figures: dict[str, Any] = {
        "name": name,
        "path": where("memory"),
        "active": active,
        "limits": {limit.name: _effective(host, limit, found[limit.controller]) for limit in LIMITS},
        **{key: _here(host, found[files[0]], files[1:]) for key, files in HERE.items()},
        **{key: _set(host, found["cpuset"], files) for key, files in SETS.items()},
        "reason": reason,
    }
    return group(_cgroup.ROOT, figures)


@dataclass(frozen=True)
class Level:
    """One folder on the way from a group to the root of its hierarchy."""

    version: int
    folder: str
    name: str  # the path as people write it
    present: bool


def _levels(host: Host, controller: str, path: str) -> list[Level]:
    """Return the group and those above it, the deepest first; none where the controller does not act."""
    found = _cgroup.folder(host, controller)
    if found is None:
        return []
    version, root = found
    levels = []
    while True:
        folder = root + path.rstrip("/")
        inside = ".." not in path.split("/")
        levels.append(Level(version, folder, path, inside and bool(_read.names(host, folder))))
        if path in ("/", ""):
            return [level for place, level in enumerate(levels) if place == 0 or level.present]
        path = os.path.dirname(path)


def _effective(host: Host, limit: Limit, levels: list[Level]) -> dict[str, Any]:
    """Return the tightest value on the way up and the level that sets it."""
    if not levels:
        return _figure(Missing(f"the controller {limit.controller} does not act on this host"))
    name = limit.second if levels[0].version == 2 else limit.first
    if not name:
        return _figure(Missing(f"cgroup version {levels[0].version} has no such limit"))
    found = []
    for level in levels:
        value = limit.read(host, f"{level.folder}/{name}") if level.present else None
        if value is not None:
            found.append((value, level))
    if not found:
        return _figure(Missing("no level sets this limit"))
    value, level = min(found, key=lambda pair: pair[0])
    return {"value": value, "level": level.name, "source": f"{level.folder}/{name}", "reason": None}


def _figure(missing: Missing) -> dict[str, Any]:
    return {"value": None, "level": None, "source": None, "reason": missing.reason}


def _here(host: Host, levels: list[Level], files: tuple[str, ...]) -> int | Missing:
    """Return the use at the deepest level; the kernel keeps none for the root of version 2 and of tasks."""
    if not levels:
        return Missing("the controller does not act on this host")
    if not levels[0].present:
        return Missing("the group is not active")
    return number(host, f"{levels[0].folder}/{files[2 - levels[0].version]}")


def _set(host: Host, levels: list[Level], files: tuple[str, ...]) -> str | Missing:
    """Return a set of numbers from the deepest level that has one."""
    for level in (one for one in levels if one.present):
        content = _read.text(host, f"{level.folder}/{files[2 - level.version]}")
        if content:
            return content
    return Missing("the controller cpuset does not act on this host")

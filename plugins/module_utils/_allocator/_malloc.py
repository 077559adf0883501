# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The C library's malloc, what steers it, what stands in its place, and what a process runs on."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _libraries
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _elf, _environment, _maps, _processes
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._figures import Missing, group
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Scene, failure
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

LIST = "--list-tunables"  # the loader knows this from glibc 2.33 on
# Before that: what malloc takes from which version on.
SINCE = {
    (2, 26): (
        "arena_max",
        "arena_test",
        "check",
        "mmap_max",
        "mmap_threshold",
        "perturb",
        "top_pad",
        "trim_threshold",
        "tcache_count",
        "tcache_max",
        "tcache_unsorted_limit",
    ),
    (2, 30): ("mxfast",),
}
NAMES = ("jemalloc", "tcmalloc", "mimalloc")


def gather(scene: Scene) -> dict[str, Any]:
    """Return the facts about malloc."""
    variables = _environment.everywhere(scene)
    accepted = glibc(scene)
    return {
        "glibc": accepted,
        "variables": list(_environment.rows(variables)),
        "unknown_tunables": unknown(variables, accepted["tunables"]),
        "preloads": _environment.preloads(scene.host, variables),
        "libraries": {name: _library(scene.host, name) for name in NAMES},
        "processes": processes(scene),
    }


def glibc(scene: Scene) -> dict[str, Any]:
    """Return the version of the C library and the tunables that it takes."""
    version = _version()
    if isinstance(version, Missing):
        return group(
            "confstr(CS_GNU_LIBC_VERSION)", {"version": version, "tunables": version, "tunables_source": version}
        )
    numbers = numbers_of(version)
    loader = next(
        (path for path in _maps.files(_read.text(scene.host, "/proc/self/maps") or "") if _is_loader(path)), None
    )
    if loader is not None and numbers >= (2, 33):
        result = scene.ask([loader, LIST])
        if failure([loader], result) is None:
            found = {"tunables": tunables(result.output), "tunables_source": f"{loader} {LIST}"}
            return group("confstr(CS_GNU_LIBC_VERSION)", {"version": version, **found})
    known = [f"glibc.malloc.{name}" for since, names in SINCE.items() if numbers >= since for name in names]
    source = f"table for glibc {version}, without what a distribution added"
    return group(
        "confstr(CS_GNU_LIBC_VERSION)", {"version": version, "tunables": sorted(known), "tunables_source": source}
    )


def _version() -> str | Missing:
    try:
        words = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        words = []
    return words[-1] if words[:1] == ["glibc"] else Missing("the C library here is not glibc")


def _is_loader(path: str) -> bool:
    return bool(re.fullmatch(r"ld(?:-linux[-\w]*|-2\.\d+|64)\.so(?:\.\d)?", os.path.basename(path)))


def numbers_of(version: str) -> tuple[int, ...]:
    """Return a version as numbers, for comparison."""
    return tuple(int(word) for word in re.findall(r"\d+", version.partition("+")[0])[:3])


def tunables(listing: str) -> list[str]:
    """Return the names in the loader's list."""
    return sorted(line.partition(":")[0] for line in listing.splitlines() if line.startswith("glibc."))


def unknown(variables: Sequence[_environment.Variable], accepted: Sequence[str] | None) -> list[dict[str, str]]:
    """Return the tunables that are set and that this C library silently passes over."""
    found = []
    for variable in variables if accepted else ():
        for pair in variable.value.split(":") if variable.name == "GLIBC_TUNABLES" else ():
            name = pair.partition("=")[0]
            if name and name not in (accepted or ()):
                found.append({"name": name, "source": variable.source})
    return found


def _library(host: Host, name: str) -> dict[str, Any]:
    try:
        return {"path": _libraries.find(host, name), "reason": None}
    except TuningError as error:
        return {"path": None, "reason": str(error)}


def processes(scene: Scene) -> list[dict[str, Any]]:
    """Return what each named process, and the main process of each named service, runs on."""
    found = list(_processes.find(scene.host, scene.options.processes))
    units, reason = _processes.units(scene, ())
    for unit in units:
        pid = _processes.main_pid(unit)
        missing = None if pid else f"{unit['asked']}: has no main process now"
        found.append(_processes.Found(unit["asked"], pid, _read.text(scene.host, f"/proc/{pid}/comm"), missing))
    found += [_processes.Found(_processes.unit(name), None, None, reason) for name in scene.options.services if reason]
    return [_process(scene.host, one) for one in found]


def _process(host: Host, found: _processes.Found) -> dict[str, Any]:
    row: dict[str, Any] = {"asked": found.asked, "pid": found.pid, "command": found.command}
    none: dict[str, Any] = {"malloc": None, "library": None, "how": None, "variables": [], "source": None}
    if found.pid is None:
        return {**row, **none, "reason": found.reason}
    path = f"/proc/{found.pid}/maps"
    maps = _read.text(host, path)
    if not maps:
        return {**row, **none, "reason": _read.why_not(host, path)}
    variables = _environment.of_process(host, found.pid)
    preloads = (
        None if variables is None else [*_maps.words(variables.get("LD_PRELOAD", "")), *_environment.preload_file(host)]
    )
    verdict = _maps.judge(_maps.files(maps), preloads, _elf.needed(host.at(f"/proc/{found.pid}/exe")))
    picked = _environment.rows(_environment.pick(variables or {}, f"/proc/{found.pid}/environ"))
    return {
        **row,
        "malloc": verdict.name,
        "library": verdict.library,
        "how": verdict.how,
        "variables": list(picked),
        "source": path,
        "reason": None if verdict.name else verdict.how,
    }

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables that steer malloc and torch, wherever a job may get them from, and what they preload."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _libraries
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _maps
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

OWNERS = (
    (re.compile(r"MALLOC_CONF|_RJEM_MALLOC_CONF|JE_MALLOC_CONF"), "jemalloc"),
    (re.compile(r"MALLOC_[A-Z_]+|GLIBC_TUNABLES"), "glibc"),
    (re.compile(r"TCMALLOC_[A-Z_]+"), "tcmalloc"),
    (re.compile(r"MIMALLOC_[A-Z_]+"), "mimalloc"),
    (re.compile(r"LD_PRELOAD"), "loader"),
    (
        re.compile(r"PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF|PYTORCH_NO_(?:CUDA|HIP)_MEMORY_CACHING|THP_MEM_ALLOC_ENABLE"),
        "torch",
    ),
)
ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)$", re.MULTILINE)
MACHINE_WIDE = "/etc/environment"
PROFILES = "/etc/profile.d"
PRELOAD_FILE = "/etc/ld.so.preload"


@dataclass(frozen=True)
class Variable:
    """One variable with the place that sets it and who reads it."""

    name: str
    value: str
    source: str
    read_by: str


def owner(name: str) -> str | None:
    """Return who reads a variable; None for those that are not our matter."""
    return next((who for pattern, who in OWNERS if pattern.fullmatch(name)), None)


def pick(pairs: Mapping[str, str], source: str) -> list[Variable]:
    """Return those of some variables that steer memory."""
    found = ((name, _read.clean(value), owner(name)) for name, value in sorted(pairs.items()))
    return [Variable(name, value, source, who) for name, value, who in found if who]


def everywhere(scene: Scene) -> list[Variable]:
    """Return the variables of the jobs as the caller names them, of the caller, and of what the machine sets."""
    return [
        *pick(scene.options.environment, "option environment"),
        *pick({name: value for name, value in os.environ.items() if name not in scene.options.environment}, "caller"),
        *machine_wide(scene.host),
    ]


def machine_wide(host: Host) -> list[Variable]:
    """Return what logins get: /etc/environment, and the plain assignments in profile.d."""
    scripts = [f"{PROFILES}/{name}" for name in _read.names(host, PROFILES) if name.endswith(".sh")]
    found = []
    for path in (MACHINE_WIDE, *scripts):
        pairs = {name: _unquote(value) for name, value in ASSIGNMENT.findall(_read.text(host, path) or "")}
        found += pick(pairs, path)
    return found


def _unquote(value: str) -> str:
    """Return a value without quotes and the comment behind it."""
    found = re.match(r"""(["'])(.*?)\1""", value.strip())
    return found[2] if found else value.partition(" #")[0].strip()


def of_process(host: Host, pid: int) -> dict[str, str] | None:
    """Return the variables that a process was started with, or None where they cannot be read."""
    content = _read.text(host, f"/proc/{pid}/environ")
    return None if content is None else dict(part.split("=", 1) for part in content.split("\0") if "=" in part)


def value_in_force(variables: Sequence[Variable], name: str) -> Variable | None:
    """Return where a job gets a variable: the first of the sources that has it."""
    return next((variable for variable in variables if variable.name == name), None)


def preloads(host: Host, variables: Sequence[Variable]) -> list[dict[str, Any]]:
    """Return each library that the loader is told to load first, and whether it is there."""
    asked = [(word, one.source) for one in variables if one.name == "LD_PRELOAD" for word in _maps.words(one.value)]
    asked += [(word, PRELOAD_FILE) for word in preload_file(host)]
    return [{"path": word, "source": source, **_look(host, word)} for word, source in asked]


def preload_file(host: Host) -> list[str]:
    """Return the libraries of the file that is in force for every program of the machine."""
    lines = (line.split("#")[0] for line in (_read.text(host, PRELOAD_FILE) or "").splitlines())
    return [word for line in lines for word in _maps.words(line)]


def _look(host: Host, word: str) -> dict[str, Any]:
    if "$" in word:
        return {"exists": None, "reason": f"{word}: only the loader knows what it puts in place of the variable"}
    places = [word] if "/" in word else [f"{folder}/{word}" for folder in _libraries.folders(os.uname().machine)]
    if any(_libraries.exists(host, place) for place in places):
        return {"exists": True, "reason": None}
    reason = "the file is missing: the loader prints a line for every program" if "/" in word else None
    return {"exists": False, "reason": reason or "no usual folder has it: the loader prints a line for every program"}


def rows(variables: Sequence[Variable]) -> Iterator[dict[str, str]]:
    """Yield the variables as the facts show them."""
    yield from map(asdict, variables)

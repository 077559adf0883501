# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each torch on the host: its versions and the allocator configuration that its jobs get."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import replace
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import (
    _configuration,
    _elf,
    _environment,
    _maps,
    _wheels,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._figures import Missing, group
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Scene, failure
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import _interpreter

QUESTION = """
import json, sys
sys.path[:] = [path for path in sys.path if path]
from importlib import util
found = util.find_spec("torch")
with open("/proc/self/maps") as stream:
    maps = stream.read()
print(json.dumps({
    "origin": found and found.origin, "path": sys.path, "prefix": sys.prefix, "python": sys.version.split()[0],
    "executable": sys.executable, "maps": maps,
}))
"""
# Nothing here starts CUDA, as torch.backends.cudnn.version() would.
IMPORT = """
import json, sys
sys.path[:] = [path for path in sys.path if path]
import torch
def ask(what):
    try:
        return what()
    except Exception:
        return None
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None),
    "nccl": ask(lambda: ".".join(map(str, torch.cuda.nccl.version()))),
    "cudnn": ask(lambda: ".".join(map(str, torch._C._cudnn.getRuntimeVersion()))),
    "backend": ask(lambda: torch.cuda.memory.get_allocator_backend()),
    "configuration": ask(lambda: torch._C._accelerator_getAllocatorSettings()),
    "cuda_started": ask(lambda: torch.cuda.is_initialized()),
}))
"""
VERSIONS = ("version", "cuda", "hip", "nccl", "cudnn")
PLACE = ("python", "prefix", "folder")
FIGURES = (*PLACE, *VERSIONS, "nccl_required", "cudnn_required", "cpu_tensors", "malloc", "allocator", "imported")
UNUSED = "this torch has no GPU support, so its allocator is not in use"
UNSET = "no variable sets it, so torch takes its defaults"
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def gather(scene: Scene) -> list[dict[str, Any]]:
    """Return a row for each named interpreter, or for each of the usual ones that has torch."""
    wanted = list(scene.options.interpreters)
    places = {name: shutil.which(name) for name in wanted or [*_interpreter.PLACES, sys.executable]}
    if not wanted:  # each program once, whatever it is called
        places = {path: path for path in places.values() if path is not None}
    rows: list[dict[str, Any]] = []
    for number, (name, path) in enumerate(places.items(), 1):
        reason = f"{name}: is no program here" if path is None else None if wanted else foreign(path)
        row = (
            _nothing(name, reason or "") if path is None or reason else _row(_part(scene, number == len(places)), path)
        )
        again = (row["folder"], row["prefix"]) in [(one["folder"], one["prefix"]) for one in rows]
        if wanted or reason or (row["folder"] and not again):
            rows.append(row)
    return rows


def foreign(path: str) -> str | None:
    """Return why root should not run a program that nobody named: somebody else could have put anything there."""
    owner = os.stat(os.path.dirname(path)).st_uid
    if os.geteuid() != 0 or owner == 0:
        return None
    return f"{path}: belongs to user {owner}, so root does not run it unasked; name it in interpreters"


def _part(scene: Scene, last: bool) -> Scene:
    """Return the scene with half of the time that is left: an interpreter that hangs does not cost the others."""
    now = time.monotonic()
    return scene if last else replace(scene, until=now + max(scene.until - now, 0.0) / 2)


def _nothing(name: str, reason: str, **known: str) -> dict[str, Any]:
    return {"interpreter": name, **group("", {**dict.fromkeys(FIGURES, Missing(reason)), **known}), "reason": reason}


def _row(scene: Scene, path: str) -> dict[str, Any]:
    environment = {**os.environ, **scene.options.environment, "PYTHONDONTWRITEBYTECODE": "1"}
    result = scene.ask([path, "-c", QUESTION], environment)
    told, problem = _last(result.output), failure([path], result)
    if problem is not None or told is None:
        return _nothing(path, problem or f"{path}: did not answer as a Python does")
    if not told.get("origin"):
        return _nothing(path, f"{path}: has no torch", python=told["python"], prefix=told["prefix"])
    imported = _imported(scene, path, environment) if scene.options.import_torch else None
    return {"interpreter": path, **describe(scene, told, imported), "reason": None}


def _last(output: str) -> dict[str, Any] | None:
    """Return the answer: the last line, whatever was printed before it at the start of Python."""
    lines = output.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _imported(scene: Scene, path: str, environment: dict[str, str]) -> dict[str, Any]:
    result = scene.ask([path, "-c", IMPORT], environment)
    answer = _last(result.output)
    if answer is None or result.code != 0:
        return {"reason": failure([path], result) or f"{path}: torch gave no answer"}
    return {**answer, "reason": None}


def describe(scene: Scene, told: dict[str, Any], imported: dict[str, Any] | None) -> dict[str, Any]:
    """Return the facts about one torch from its files, and from itself where it was imported."""
    host, folder = scene.host, os.path.dirname(told["origin"])
    packages = [os.path.dirname(folder), *(path for path in told["path"] if path != os.path.dirname(folder))]
    said = _wheels.version_file(_read.text(host, f"{folder}/version.py") or "")
    needs = _wheels.required(host, packages[:1])
    figures: dict[str, Any] = {"python": told["python"], "prefix": told["prefix"], "folder": folder}
    absent = Missing(f"{folder}/version.py: does not say")
    figures["version"] = said.get("__version__") or absent
    for name in ("cuda", "hip"):
        built = Missing(f"this torch was built without {name.upper()}") if name in said else absent
        figures[name] = said.get(name) or built
    for name in ("nccl", "cudnn"):
        found = (
            _wheels.library(host, packages, told["prefix"], name)
            if said.get("cuda")
            else Missing(f"this torch has no {name}")
        )
        figures[name] = found if isinstance(found, Missing) else found[0]
        figures[f"{name}_required"] = needs.get(name) or Missing("torch's package names no version")
    for name in VERSIONS:
        figures[name] = (imported or {}).get(name) or figures[name]
    figures["imported"] = imported or Missing("import_torch is not set")
    tensors = _wheels.tensor_malloc(host, folder)
    figures["cpu_tensors"] = tensors if isinstance(tensors, Missing) else tensors[0]
    figures["malloc"] = vars(_malloc(host, scene, told))
    figures["allocator"] = allocator(scene, figures, imported)
    return group(f"{folder}/version.py and the packages beside it", figures)


def _malloc(host: Host, scene: Scene, told: dict[str, Any]) -> _maps.InForce:
    preload = scene.options.environment.get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))
    preloads = [*_maps.words(preload), *_environment.preload_file(host)]
    return _maps.judge(_maps.files(told["maps"]), preloads, _elf.needed(os.path.realpath(told["executable"])))


def allocator(scene: Scene, figures: dict[str, Any], imported: dict[str, Any] | None) -> dict[str, Any]:
    """Return the backend and configuration in force, where it comes from, and what is to be said about it."""
    torch = _configuration.version(figures["version"] if isinstance(figures["version"], str) else None)
    hip = isinstance(figures["hip"], str)
    gpu = hip or isinstance(figures["cuda"], str)
    variables = _environment.everywhere(scene)
    names = _configuration.names(torch, hip)
    chosen = next(filter(None, (_environment.value_in_force(variables, name) for name in names)), None)
    text = chosen.value if chosen else ""
    where = _configuration.Where(torch, _configuration.version(os.uname().release), ptrace_limit(scene.host))
    given = {one.name: one.value for one in reversed(variables)}
    refused = _configuration.problems(text, torch)
    backend = (imported or {}).get("backend") or _configuration.options(text).get("backend", "native")
    return {
        "reads": list(names),
        "variable": chosen.name if chosen else None,
        "configuration": _configuration.normal(text) if chosen else None,
        "source": chosen.source if chosen else None,
        "options": _configuration.options(text),
        "backend": backend if gpu else None,
        "caching": not {"PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"} & set(given)
        if gpu
        else None,
        "valid": not refused if chosen else None,
        "problems": refused,
        "concerns": [
            *_configuration.concerns(text, where),
            *_configuration.unread(given, torch, hip),
        ],
        "reason": None if gpu and chosen else UNSET if gpu else UNUSED,
    }


def ptrace_limit(host: Host) -> str | None:
    """Return what keeps a process from another one's descriptors here, or None."""
    scope = _read.number(host, YAMA)
    if scope:
        return f"kernel.yama.ptrace_scope is {scope}"
    status = _read.text(host, "/proc/self/status") or ""
    filtered = any(line.split() == ["Seccomp:", "2"] for line in status.splitlines())
    return "system calls are filtered here, by seccomp" if filtered else None

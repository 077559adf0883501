# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the requested checks in order and say on standard output, a JSON line each, what began and what was found."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from . import (
    _allocator,
    _bandwidth,
    _collectives,
    _dataloader,
    _environment,
    _exhaustion,
    _fill,
    _fragmentation,
    _huge_pages,
    _pinned,
    _training,
)
from ._report import ERRORS, Context, Finding, Row

Check = Callable[[Context], Iterator[Finding]]
CHECKS: dict[str, Check] = {
    "environment": _environment.check,
    "huge_pages": _huge_pages.check,
    "allocator": _allocator.check,
    "fill": _fill.check,
    "out_of_memory": _exhaustion.check,
    "bandwidth": _bandwidth.check,
    "pinned": _pinned.check,
    "training": _training.check,
    "fragmentation": _fragmentation.check,
    "dataloader": _dataloader.check,
    "collectives": _collectives.check,
}
NEEDS_GPU = ("allocator", "fill", "fragmentation", "out_of_memory", "bandwidth")


def main() -> None:
    """Read the request, do what it says."""
    with open(sys.argv[1], encoding="utf-8") as stream:
        request = json.load(stream)
    tell = Speaker()
    tell({"event": "import"})
    context, facts = prepare(request)
    tell({"event": "host", **facts})
    for name in request["checks"]:
        tell({"event": "start", "check": name})
        started = time.monotonic()
        for finding in run(name, context, request["checks"][name]):
            kind = "row" if isinstance(finding, Row) else "measure"
            tell({"event": kind, "check": name, **asdict(finding)})
        tell({"event": "end", "check": name, "duration": round(time.monotonic() - started, 3)})
    tell({"event": "done"})
    sys.stderr.flush()
    os._exit(0)  # what libraries do at the exit of an interpreter is no part of the test


class Speaker:
    """The pipe to the engine; what torch or a library prints must not get between our lines."""

    def __init__(self) -> None:
        """Keep the pipe for ourselves and let everybody else print to standard error."""
        self._pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        warnings.simplefilter("ignore")

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Say one line."""
        self._pipe.write(json.dumps(event) + "\n")
        self._pipe.flush()


def keep_bytecode(folder: str) -> None:
    """Let the processes of the checks share what is compiled here, where torch was installed without bytecode.

    Nothing is written beside the user's files: the folder goes with the probe.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.cached is None or os.path.exists(found.cached):
        return
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.path.join(folder, "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix


def prepare(request: Mapping[str, Any]) -> tuple[Context, dict[str, Any]]:
    """Import torch and see which GPUs it can use."""
    keep_bytecode(request["folder"])
    torch = importlib.import_module("torch")
    try:
        numpy = importlib.import_module("numpy")
    except ImportError:
        numpy = None
    gap = Row("", request["gap"]["status"], reason=request["gap"]["reason"], action=request["gap"]["action"])
    context = Context(torch, numpy, request["folder"], gap=gap)
    if request["use_gpus"]:
        context = with_gpus(context)
    names = [torch.cuda.get_device_name(gpu) for gpu in context.gpus]
    return context, {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": names}


def with_gpus(context: Context) -> Context:
    """Return the context with the GPUs that torch sees, or with why it sees none."""
    torch = context.torch
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        action = "name an interpreter whose torch is built for CUDA (validate_memory_python)"
        return replace(
            context, gap=Row("", "unknown", reason=f"torch {torch.__version__} is built without CUDA", action=action)
        )
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
    except ERRORS as error:
        action = "compare the driver with what this torch needs; look at nvidia-smi and the kernel log (Xid)"
        return replace(
            context, gap=Row("", "fail", reason=f"torch cannot use the GPUs: {first_line(error)}", action=action)
        )
    return replace(context, gpus=tuple(f"cuda:{index}" for index in range(count)))


def run(name: str, context: Context, options: Mapping[str, Any]) -> Iterator[Finding]:
    """Run one check; whatever it raises is a row."""
    if name in NEEDS_GPU and not context.gpus:
        gap = context.gap
        yield Row(name, gap.status, reason=gap.reason, action=gap.action)
        return
    try:
        yield from CHECKS[name](replace(context, options=options))
    except ERRORS as error:
        yield broken(name, error)
    finally:
        if context.gpus:
            context.torch.cuda.empty_cache()


def broken(name: str, error: Exception) -> Row:
    """Return the row for a check that could not be finished."""
    text = f"{type(error).__name__}: {first_line(error)}"
    if "CUDA" in text or type(error).__name__ in ("AcceleratorError", "OutOfMemoryError"):
        action = "look at the kernel log for Xid messages and at nvidia-smi for ECC errors; reset or drain the GPU"
        return Row(name, "fail", observed="CUDA error", reason=text, action=action)
    return Row(name, "unknown", observed="error", reason=text, action="the check could not be finished; see the reason")


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return (str(error).strip().splitlines() or [""])[0][:300]

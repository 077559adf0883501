# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a task of the probe in processes of its own, where a check needs another environment or several ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any


def start(
    folder: str, task: str, arguments: Mapping[str, Any], environment: Mapping[str, str | None]
) -> subprocess.Popen[bytes]:
    """Start `task` (module.function of this package) with the arguments; it answers with one JSON value."""
    code = (
        "import importlib, json, os, sys; out = os.dup(1); os.dup2(2, 1); sys.path.insert(0, sys.argv[1]); "
        "module, name = sys.argv[2].split('.'); "
        f"task = getattr(importlib.import_module('{__package__}.' + module), name); "
        "os.write(out, json.dumps(task(**json.loads(sys.argv[3]))).encode()); os._exit(0)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, folder, task, json.dumps(dict(arguments))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: value for name, value in {**os.environ, **environment}.items() if value is not None},
    )


def collect(children: Sequence[subprocess.Popen[bytes]], seconds: float) -> list[Any]:
    """Return the answers in order; a child that fails or is late gives a mapping with `error`."""
    deadline = time.monotonic() + seconds
    answers: list[Any] = []
    for child in children:
        try:
            out, err = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            answers.append({"error": f"no answer within {seconds:.0f} s"})
            continue
        answers.append(_answer(child.returncode, out, err))
    return answers


def _answer(code: int, out: bytes, err: bytes) -> Any:
    if code == 0 and out:
        return json.loads(out)
    lines = err.decode(errors="replace").strip().splitlines()
    return {"error": f"exit status {code}: {lines[-1][:300] if lines else 'no message'}"}

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the Python that has torch, or make an environment with it where that was asked for."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import _processes

PLACES = (
    "python3",
    "/opt/pytorch/bin/python3",
    "/opt/torch/.venv/bin/python3",
    "/opt/torch/bin/python3",
    "/opt/venv/bin/python3",
    "/opt/conda/bin/python3",
    "/opt/miniconda3/bin/python3",
    "/opt/miniforge3/bin/python3",
    "/usr/local/bin/python3",
    "/usr/bin/python3",
)
HAS_TORCH = (
    "import importlib.util as u, sys; "
    "sys.exit('has torch' if u.find_spec('torch') and sys.version_info >= (3, 9) else 1)"
)
SECONDS = 20.0
INSTALL_SECONDS = 1800.0

Try = Callable[[str], bool]


def has_torch(python: str, environment: Mapping[str, str] | None = None) -> bool:
    """Tell whether an interpreter is new enough and has torch, under the jobs' variables and without importing it."""
    variables = {**os.environ, **(environment or {})}
    return (_processes.ask([python, "-c", HAS_TORCH], SECONDS, variables) or "").strip().endswith("has torch")


def find(wanted: str, venv: str, test: Try = has_torch) -> str | None:
    """Return the interpreter: the named one, that of the environment, or the first of the usual ones with torch."""
    if wanted:
        path = shutil.which(wanted)
        if path is None or not test(path):
            raise TuningError(
                f"python: {wanted} is not a Python 3.9 or newer with torch; name another one (validate_memory_python)"
            )
        return path
    if venv:
        return os.path.join(venv, "bin", "python3")
    for place in (*PLACES, sys.executable):
        path = shutil.which(place)
        if path is not None and test(path):
            return path
    return None


def make(venv: str, index: str, packages: Sequence[str]) -> bool:
    """Make the environment unless it has torch already; tell whether it was made."""
    python = os.path.join(venv, "bin", "python3")
    if has_torch(python):
        return False
    if not index:
        raise TuningError(
            f"venv: {venv} has no torch, and no index to install it from was named (validate_memory_venv_index)"
        )
    for command in (
        [sys.executable, "-m", "venv", venv],
        [python, "-m", "pip", "install", "--index-url", index, *packages],
    ):
        said = _processes.ask(command, INSTALL_SECONDS)
        if said is None:
            raise TuningError(f"venv: {' '.join(command[:4])} did not end within {INSTALL_SECONDS:.0f} s")
    if not has_torch(python):
        raise TuningError(
            f"venv: {venv} has no torch after the installation from {index}: {(said or '').strip()[-300:]}"
        )
    return True

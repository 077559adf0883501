# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An interpreter with torch for the tests that really run it, and the smoke test with its default options."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import _arguments, _run

ROOT = Path(__file__).resolve().parents[3]
VENV = ROOT / ".cache" / "torch"
PACKAGES = ("torch==2.13.0", "numpy")
Smoke = Callable[..., dict[str, Any]]


def _has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def _make() -> str:
    """Make the environment; GPU_FLEET_TORCH_INDEX names another index than pip's own settings do."""
    python = str(VENV / "bin" / "python")
    if Path(python).exists() and _has_torch(python):
        return python
    index = os.environ.get("GPU_FLEET_TORCH_INDEX")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    command = [python, "-m", "pip", "install", "-q", *(["--index-url", index] if index else []), *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(
            f"torch: {' '.join(PACKAGES)} cannot be installed into {VENV} ({done.stderr.strip()[-200:]}); "
            "set GPU_FLEET_TORCH_PYTHON to an interpreter with torch, or GPU_FLEET_TORCH_INDEX to an index that has it"
        )
    return python


@pytest.fixture(scope="session")
def torch_python() -> str:
    """Return an interpreter with torch."""
    named = os.environ.get("GPU_FLEET_TORCH_PYTHON")
    if named is None:
        return _make()
    assert _has_torch(named), f"GPU_FLEET_TORCH_PYTHON: {named} has no torch"
    return named


@pytest.fixture
def smoke(tmp_path: Path) -> Smoke:
    """Run the smoke test of this host with some options; only the named checks are enabled."""

    def call(python: str, checks: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        chosen = {name: (checks or {}).get(name, {"enabled": checks is None}) for name in _arguments.OWN}
        values = {name: option.get("default") for name, option in _arguments.spec().items()}
        values.update(python=python, history=str(tmp_path / "history"), checks=chosen, **options)
        return _run.smoke(values, False, lambda _check: None)

    return call


def rows(result: dict[str, Any], status: str) -> dict[str, dict[str, Any]]:
    """Return the rows of one status by name."""
    return {row["name"]: row for row in result["checks"] if row["status"] == status}

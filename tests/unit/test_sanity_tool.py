# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wrapper around ansible-test fails where nothing was tested, and helps only where its bootstrap cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "sanity.py"


def _run(programs: Path, stand_in: str, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the wrapper with a stand-in for ansible-test."""
    programs.mkdir(exist_ok=True)
    (programs / "ansible-test").write_text(f"#!/bin/sh\n{stand_in}\n", encoding="utf-8")
    (programs / "ansible-test").chmod(0o755)
    path = os.pathsep.join(str(folder) for folder in (first, programs, os.environ["PATH"]) if folder)
    environment = {**os.environ, "PATH": path}
    return subprocess.run([sys.executable, TOOL], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("stand_in", "status"),
    [
        ("echo Running sanity test", 0),
        ("echo WARNING: All targets skipped.", 1),
        ("exit 3", 3),
        ('[ "$(basename "$PWD")" = node ] && [ -f galaxy.yml ] && [ -d .git ] && [ ! -L ../node ]', 0),
        ("[ ! -e .venv ] && [ ! -e .ansible ]", 0),
    ],
)
def test_status(tmp_path: Path, stand_in: str, status: int) -> None:
    assert _run(tmp_path / "bin", stand_in).returncode == status


def test_bootstrap_is_provided_where_it_cannot_be_downloaded(tmp_path: Path) -> None:
    cached = tmp_path / "get_pip_1_2.py"
    done = _run(tmp_path / "bin", f"[ -e {cached} ] || echo can be manually downloaded and saved to: {cached}")
    assert "cannot be downloaded here" in done.stdout
    assert "ensurepip" in cached.read_text(encoding="utf-8")


def test_bootstrap_is_left_alone_where_it_can(tmp_path: Path) -> None:
    assert "cannot be downloaded" not in _run(tmp_path / "bin", "echo Running sanity test").stdout


def test_folders_with_a_python_that_does_not_start_are_left_out(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for name, text in {"python3.9": "exit 127", "ansible-test": "echo the broken one"}.items():
        (broken / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (broken / name).chmod(0o755)
    done = _run(tmp_path / "bin", "echo the working one", first=broken)
    assert "the working one" in done.stdout
    assert "the broken one" not in done.stdout

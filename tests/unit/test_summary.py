# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The closing line of a test run tells what ran, and fails where something failed or nothing ran."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SUMMARY = Path(__file__).resolve().parents[1] / "tools" / "summary.py"
JUNIT = '<testsuites><testsuite tests="{}" failures="{}" errors="{}" skipped="{}"/></testsuites>'


@pytest.mark.parametrize(
    ("sessions", "reports", "line", "status"),
    [
        ({"lint": "success", "unit": "success"}, {"unit": (9, 0, 0, 2)}, "8 passed, 0 failed, 2 skipped", 0),
        ({"lint": "success", "unit": "failed"}, {"unit": (9, 1, 1, 0)}, "8 passed, 2 failed", 1),
        ({"unit": "failed"}, {"unit": (9, 0, 0, 0)}, "9 passed, 1 failed", 1),
        ({"lint": "failed", "floor": "skipped"}, {}, "0 passed, 1 failed, 1 skipped", 1),
        ({"lint": "aborted"}, {}, "0 passed, 1 failed", 1),
        (
            {"core(1)": "success", "core(2)": "success"},
            {"core(1)": (3, 0, 0, 0), "core(2)": (4, 0, 0, 0)},
            "7 passed, 0 failed",
            0,
        ),
        ({}, {}, "0 passed, 0 failed", 1),
    ],
)
def test_closing_line(
    tmp_path: Path, sessions: dict[str, str], reports: dict[str, tuple[int, ...]], line: str, status: int
) -> None:
    rows = [{"name": key.split("(")[0], "signatures": [key], "result": result} for key, result in sessions.items()]
    (tmp_path / "nox.json").write_text(json.dumps({"sessions": rows}), encoding="utf-8")
    for name, counts in reports.items():
        (tmp_path / f"{name}.xml").write_text(JUNIT.format(*counts), encoding="utf-8")
    done = subprocess.run([sys.executable, SUMMARY, tmp_path], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (line, status), done.stderr

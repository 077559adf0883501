# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook through Ansible with a local connection, on a stand-in for torch: verdicts, reports, progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import _arguments

from .test_ends import still_there, torch

ROOT = Path(__file__).resolve().parents[3]


class Play:
    """A run of the playbook and what it left."""

    def __init__(self, folder: Path, fault: str, *options: str, **variables: Any) -> None:
        checks = {name: {"enabled": name in ("environment", "huge_pages")} for name in _arguments.OWN}
        checks["huge_pages"]["timeout"] = 3
        values = {
            "validate_memory_python": sys.executable,
            "validate_memory_environment": torch(folder, fault),
            "validate_memory_checks": checks,
            "validate_memory_history": str(folder / "history"),
            "validate_report": str(folder / "report"),
            **variables,
        }
        command = [
            sys.executable,
            "-m",
            "ansible",
            "playbook",
            "-i",
            "inventory/localhost.yml",
            "validate-gpu-nodes.yml",
        ]
        environment = {
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "LC_ALL": "C.UTF-8",
        }
        done = subprocess.run(
            [*command, "-e", json.dumps(values), *options],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.status, self.out, self.report = done.returncode, done.stdout + done.stderr, folder / "report"
        assert "Traceback" not in self.out

    def host(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.report / "hosts" / "localhost.json").read_text(encoding="utf-8"))
        return found


@pytest.mark.parametrize(("fault", "verdict"), [("end(11)", "fail"), ("leave()", "unknown")])
def test_a_bad_verdict_ends_the_play_and_is_reported(tmp_path: Path, fault: str, verdict: str) -> None:
    play = Play(tmp_path, fault)
    assert play.status == 2 and f"{verdict}: huge_pages" in play.out
    assert play.host()["verdict"] == verdict
    junit = (play.report / "junit.xml").read_text(encoding="utf-8")
    assert ("<failure" if verdict == "fail" else "<error") in junit
    assert {path.name for path in play.report.iterdir()} == {
        "hosts",
        "fleet.json",
        "junit.xml",
        "fleet.html",
        "fleet.prom",
    }
    assert len(list((tmp_path / "history").iterdir())) == 1


def test_check_mode_runs_nothing_and_has_no_verdict(tmp_path: Path) -> None:
    play = Play(tmp_path, "end(11)", "--check")
    assert play.status == 0 and "not run: check mode: nothing was run" in play.out
    assert not (tmp_path / "report").exists() and not (tmp_path / "history").exists()


def test_a_full_test_tells_each_check_while_it_runs(tmp_path: Path) -> None:
    before = {name for name in os.listdir("/tmp") if name.startswith("gpu-fleet-")}
    play = Play(tmp_path, "hang()", validate_memory_profile="full")
    assert play.status == 2, play.out
    begun = [
        line.split()[-1] for line in play.out.splitlines() if line.startswith("localhost: ") and line[11:13].isdigit()
    ]
    assert begun == ["torch", "environment", "huge_pages"], play.out
    assert "hung" in json.dumps(play.host()["checks"]) and "ansible_job_id" not in play.host()
    assert {name for name in os.listdir("/tmp") if name.startswith("gpu-fleet-")} <= before
    assert still_there(tmp_path) == []

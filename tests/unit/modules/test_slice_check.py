# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof of a slice: what is made of the ends of hog and neighbour, on stand-ins for systemd."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils import _slice_check
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _kernel_log

from ..machine import Box, build

EVENTS = "/sys/fs/cgroup/gpu.slice/gpu-jobs.slice/memory.events"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    monkeypatch.setattr(_kernel_log, "read", lambda _host: ([], "not here"))
    return build(tmp_path, {EVENTS: "low 0\noom_kill 3\n"})


class Systemd:
    """Stand in for systemd-run and systemctl: the hog's end, the kills that are counted, the neighbour's process."""

    def __init__(self, events: Path, told: str, kills: int, pids: Sequence[str]) -> None:
        """Answer with these."""
        self.events, self.told, self.kills, self.pids, self.calls = events, told, kills, list(pids), [""]

    def __call__(self, words: Sequence[str]) -> tuple[int, str]:
        """Answer a command."""
        self.calls.append(" ".join(words))
        if "--wait" in words:
            self.events.write_text(f"low 0\noom_kill {3 + self.kills}\n")
            return 255, self.told
        return (0, self.pids.pop(0) + "\n") if "--property=MainPID" in words else (0, "")


KILLED = "Running as unit: hog.service\nFinished with result: oom-kill\n"


@pytest.mark.parametrize(
    ("told", "kills", "pids", "failed"),
    [
        (KILLED, 1, ["77", "77"], []),
        ("Finished with result: success\n", 0, ["77", "77"], ["hog", "counted"]),
        (KILLED, 2, ["77", "77"], ["counted"]),
        (KILLED, 1, ["77", "0"], ["neighbour"]),
        (KILLED, 1, ["0", "0"], ["neighbour"]),
    ],
)
def test_only_the_hog_may_die(
    host: Box, tmp_path: Path, told: str, kills: int, pids: list[str], failed: list[str]
) -> None:
    systemd = Systemd(tmp_path / EVENTS.lstrip("/"), told, kills, pids)
    rows = _slice_check.check(host, "gpu-jobs.slice", 64, systemd)
    assert [row["name"] for row in rows if row["status"] == "fail"] == [f"gpu-jobs.slice.{name}" for name in failed]
    assert all(bool(row["action"]) == (row["status"] == "fail") for row in rows)
    assert systemd.calls[-1].startswith("systemctl stop gpu-fleet-neighbour"), "the neighbour does not stay"


@pytest.mark.parametrize(
    ("told", "statuses"), [("code=killed/status=KILL", ["pass", "unknown", "pass"]), ("", ["fail", "unknown", "pass"])]
)
def test_version_1_without_the_kernel_log_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, statuses: list[str]
) -> None:
    monkeypatch.setattr(_kernel_log, "read", lambda _host: ([], "not here"))
    tree = {"/sys/fs/cgroup/cgroup.controllers": "", "/sys/fs/cgroup/memory/tasks": ""}
    rows = _slice_check.check(build(tmp_path, tree), "gpu.slice", 64, Systemd(tmp_path / "x", told, 0, ["7", "7"]))
    assert [row["status"] for row in rows] == statuses


@pytest.mark.parametrize("name", ["user-.slice", "ssh.service", "gpu"])
def test_what_is_no_slice_is_one_sentence(host: Box, name: str) -> None:
    with pytest.raises(TuningError, match="is not the name of one slice"):
        _slice_check.check(host, name, 64, lambda _words: (1, ""))


def test_without_systemd_is_one_sentence(host: Box) -> None:
    with pytest.raises(TuningError, match=r"systemd-run: exit status 127 \(No such file"):
        _slice_check.check(host, "gpu.slice", 64, lambda _words: (127, "No such file or directory"))

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the audit says of the limits that users, services and slices really get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _limits
from ansible_collections.gpu_fleet.node.plugins.module_utils._effective_limits import User
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _run

from ..machine import Box, build, tune, units
from ..manager import Manager

LOGINS: dict[str, Any] = {
    "name": "logins",
    "limits": [{"domain": "*", "type": "-", "item": "nofile", "value": "4096"}],
}


def effective(host: Box, **names: list[str]) -> dict[tuple[str, str], tuple[str, str]]:
    result, _warned = _run.inform(host, {"sets": [LOGINS], **names})
    return {(row["who"], row["item"]): (row["value"], row["by"]) for row in result["effective"]}


def test_the_more_specific_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = build(tmp_path, {"/etc/security/limits.d/10-ml.conf": "# site\n@ml soft nofile 512\n"})
    tune(host, LOGINS)
    monkeypatch.setattr(_limits, "account", lambda _host, name: (User(name), {"ml": 7} if name == "alice" else {}))
    found = effective(host, users=["alice", "bob"])
    ours = "/etc/security/limits.d/zz-gpu-fleet-logins.conf"
    assert found["alice", "soft nofile"] == ("512", "/etc/security/limits.d/10-ml.conf:2")
    assert found["alice", "hard nofile"][1].startswith(ours) and found["bob", "soft nofile"][1].startswith(ours)
    assert found["bob", "soft nofile"][0] == "4096"


def test_a_service_and_what_its_process_still_has(tmp_path: Path) -> None:
    row = "Max locked memory         65536                65536                bytes\n"
    host = build(tmp_path, {"/proc/77/limits": row})
    runner = host.commands._runner
    assert isinstance(runner, Manager)
    runner.pids["slurmd.service"] = "77"
    tune(host, units("jobs", slurmd_service={"LimitMEMLOCK": "infinity"}, manager={"DefaultLimitNOFILE": "1024:4096"}))
    found = effective(host, units=["slurmd.service"])
    drop_in = "/etc/systemd/system/slurmd.service.d/zz-gpu-fleet-jobs-01.conf"
    assert found["slurmd.service", "LimitMEMLOCK"] == ("infinity:infinity", drop_in)
    assert found["slurmd.service", "LimitMEMLOCK of process 77"][0] == "65536:65536"
    assert found["slurmd.service", "LimitNOFILE"][1] == "/etc/systemd/system.conf.d/zz-gpu-fleet-jobs.conf"
    assert found["slurmd.service", "LimitCORE"] == ("infinity:infinity", "the default of systemd")


def test_a_slice_has_no_more_than_those_above_it(tmp_path: Path) -> None:
    host = build(tmp_path, {"/etc/systemd/system/gpu.slice.d/a.conf": "[Slice]\nMemoryMax=1073741824\n"})
    tune(host, units("jobs", gpu__jobs_slice={"MemoryMax": "4G"}))
    found = effective(host, units=["gpu-jobs.slice"])
    assert found["gpu-jobs.slice", "MemoryMax"] == (
        "1073741824",
        "gpu.slice (/etc/systemd/system/gpu.slice.d/a.conf)",
    )
    assert found["gpu-jobs.slice", "TasksMax"] == ("infinity", "the default of systemd")

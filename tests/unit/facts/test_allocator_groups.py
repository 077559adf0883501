# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups on each layout, the level a limit comes from (F13, F14), and who was killed for want of memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _groups, _oom
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Options, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe._kernel_log import Record

OOM = yaml.safe_load((Path(__file__).parent / "cases" / "allocator_oom.yml").read_text(encoding="utf-8"))
GROUPS = "sys/fs/cgroup"
GIB = 1 << 30
SECOND = {
    f"{GROUPS}/cgroup.controllers": "cpuset cpu io memory pids",
    f"{GROUPS}/memory.stat": "anon 1",
    "proc/self/cgroup": "0::/user.slice/user-0.slice/session-1.scope",
    f"{GROUPS}/user.slice/memory.max": "max",
    f"{GROUPS}/user.slice/memory.high": str(6 * GIB),
    f"{GROUPS}/user.slice/pids.max": "500",
    f"{GROUPS}/user.slice/user-0.slice/memory.max": str(8 * GIB),
    f"{GROUPS}/user.slice/user-0.slice/cpu.max": "150000 100000",
    f"{GROUPS}/user.slice/user-0.slice/session-1.scope/memory.max": "max",
    f"{GROUPS}/user.slice/user-0.slice/session-1.scope/memory.current": "4096",
    f"{GROUPS}/user.slice/user-0.slice/session-1.scope/pids.max": "max",
    f"{GROUPS}/user.slice/user-0.slice/session-1.scope/cpuset.cpus.effective": "0-3",
    f"{GROUPS}/user.slice/user-0.slice/session-1.scope/cpuset.mems.effective": "0",
}
FIRST = {
    f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712",
    f"{GROUPS}/memory/gpu.slice/memory.limit_in_bytes": "4294967296",
    f"{GROUPS}/memory/gpu.slice/memory.memsw.limit_in_bytes": "9223372036854771712",
    f"{GROUPS}/memory/gpu.slice/memory.usage_in_bytes": "12288",
    f"{GROUPS}/pids/gpu.slice/pids.max": "max",
    f"{GROUPS}/cpu/gpu.slice/cpu.cfs_quota_us": "-1",
    f"{GROUPS}/cpu/gpu.slice/cpu.cfs_period_us": "100000",
    "proc/self/cgroup": "4:memory:/gpu.slice\n2:cpu,cpuacct:/\n1:name=systemd:/gpu.slice\n",
}


def gather(root: Path, files: dict[str, str], *slices: str) -> dict[str, Any]:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n", encoding="utf-8")
    return _groups.gather(Scene(Host(str(root)), Options(slices=slices), time.monotonic() + 5))


def found(place: dict[str, Any], name: str) -> tuple[Any, Any]:
    return place["limits"][name]["value"], place["limits"][name]["level"]


def test_the_tightest_level_wins_on_version_2(tmp_path: Path) -> None:
    facts = gather(tmp_path, SECOND)
    caller = facts["caller"]
    assert (facts["layout"], facts["version"], caller["active"]) == ("unified", 2, True)
    assert found(caller, "memory_max") == (8 * GIB, "/user.slice/user-0.slice")
    assert found(caller, "memory_high") == (6 * GIB, "/user.slice")
    assert found(caller, "tasks_max") == (500, "/user.slice")
    assert found(caller, "cpu_quota") == (1.5, "/user.slice/user-0.slice")
    assert caller["limits"]["memory_max"]["source"] == "/sys/fs/cgroup/user.slice/user-0.slice/memory.max"
    assert (caller["memory_current"], caller["cpus"], caller["memory_nodes"]) == (4096, "0-3", "0")


def test_what_nothing_limits_is_null_with_the_reason(tmp_path: Path) -> None:
    caller = gather(tmp_path, SECOND)["caller"]
    assert caller["limits"]["swap_max"] == {
        "value": None,
        "level": None,
        "source": None,
        "reason": "no level sets this limit",
    }
    assert caller["limits"]["memory_and_swap_max"]["reason"] == "cgroup version 2 has no such limit"
    assert caller["reasons"]["tasks_current"].endswith("session-1.scope/pids.current: is missing")


def test_f13_a_nested_slice_lies_below_its_prefix(tmp_path: Path) -> None:
    nested = f"{GROUPS}/gpu.slice/gpu-train.slice"
    files = {**SECOND, f"{GROUPS}/gpu.slice/memory.max": str(GIB), f"{nested}/memory.max": str(2 * GIB)}
    train, other, root = gather(tmp_path, files, "gpu-train.slice", "gpu-train-a.slice", "-.slice")["slices"]
    assert (train["path"], train["active"]) == ("/gpu.slice/gpu-train.slice", True)
    assert found(train, "memory_max") == (GIB, "/gpu.slice")
    assert (other["path"], other["active"]) == ("/gpu.slice/gpu-train.slice/gpu-train-a.slice", False)
    assert found(other, "memory_max") == (GIB, "/gpu.slice")
    assert "has no group now" in other["reason"]
    assert other["memory_current"] is None and other["reasons"]["memory_current"] == "the group is not active"
    assert (root["path"], root["active"]) == ("/", True)


def test_a_slice_that_runs_without_a_group_under_a_controller_is_told(tmp_path: Path) -> None:
    files = {**FIRST, f"{GROUPS}/systemd/gpu.slice/gpu-train.slice/cgroup.procs": "1"}
    place = gather(tmp_path, files, "gpu-train.slice")["slices"][0]
    assert place["active"] is True and found(place, "memory_max") == (4294967296, "/gpu.slice")
    assert place["reason"] == (
        "gpu-train.slice: has no group under memory, pids, cpu, so limits of its own on these do not act now"
    )


def test_in_a_container_slices_lie_below_the_group_of_its_systemd(tmp_path: Path) -> None:
    inside = f"{GROUPS}/memory/libpod-1/gpu.slice"
    files = {
        "proc/1/cgroup": "4:memory:/libpod-1\n1:name=systemd:/libpod-1/init.scope\n0::/libpod-1/init.scope",
        f"{inside}/memory.limit_in_bytes": "1024",
    }
    place = gather(tmp_path, {**FIRST, **files}, "gpu.slice")["slices"][0]
    assert (place["path"], found(place, "memory_max")) == ("/libpod-1/gpu.slice", (1024, "/libpod-1/gpu.slice"))


@pytest.mark.parametrize("name", ["gpu.service", "gpu", "a/b.slice", "gpu--x.slice"])
def test_what_is_no_slice_is_said(tmp_path: Path, name: str) -> None:
    row = gather(tmp_path, SECOND, name)["slices"][0]
    assert (row["path"], row["reason"]) == (None, f"{name}: is no name of a slice")


def test_f14_on_version_1_what_has_no_effect_is_named(tmp_path: Path) -> None:
    facts = gather(tmp_path, FIRST, "gpu.slice")
    place = facts["slices"][0]
    assert (facts["layout"], facts["version"]) == ("legacy", 1)
    assert found(place, "memory_max") == (4294967296, "/gpu.slice")
    for name in ("memory_high", "swap_max"):
        assert place["limits"][name]["reason"] == "cgroup version 1 has no such limit"
    for name in ("memory_and_swap_max", "tasks_max", "cpu_quota"):
        assert place["limits"][name]["reason"] == "no level sets this limit"
    assert place["memory_current"] == 12288
    assert found(facts["caller"], "memory_max") == (4294967296, "/gpu.slice")
    assert facts["caller"]["reason"] is None


def test_hybrid_is_version_1_where_the_memory_controller_is_there(tmp_path: Path) -> None:
    facts = gather(tmp_path, {**FIRST, f"{GROUPS}/unified/cgroup.controllers": ""})
    assert (facts["layout"], facts["version"]) == ("hybrid", 1)


def test_hybrid_with_memory_in_version_2_is_version_2(tmp_path: Path) -> None:
    files = {
        f"{GROUPS}/unified/cgroup.controllers": "memory",
        f"{GROUPS}/unified/a.slice/memory.max": "1024",
        "proc/self/cgroup": "3:pids:/\n0::/a.slice",
    }
    facts = gather(tmp_path, files)
    assert (facts["layout"], facts["version"]) == ("hybrid", 2)
    assert found(facts["caller"], "memory_max") == (1024, "/a.slice")


def test_without_groups_everything_has_a_reason(tmp_path: Path) -> None:
    facts = gather(tmp_path, {}, "gpu.slice")
    assert (facts["layout"], facts["version"]) == (None, None)
    assert facts["reasons"]["version"] == "/sys/fs/cgroup: no hierarchy here has the memory controller"
    reason = facts["caller"]["limits"]["memory_max"]["reason"]
    assert reason == "the controller memory does not act on this host"


@pytest.mark.parametrize("path", ["/docker/0a1b", "/../../outside.slice"])
def test_a_group_that_a_container_cannot_see(tmp_path: Path, path: str) -> None:
    files = {**SECOND, "proc/self/cgroup": f"0::{path}", f"{GROUPS}/memory.max": "1024"}
    caller = gather(tmp_path, files)["caller"]
    assert found(caller, "memory_max") == (1024, "/")
    assert "not visible from here" in caller["reason"]


def test_a_quota_of_version_1_is_in_cpus(tmp_path: Path) -> None:
    files = {**FIRST, f"{GROUPS}/cpu/gpu.slice/cpu.cfs_quota_us": "250000"}
    assert found(gather(tmp_path, files, "gpu.slice")["slices"][0], "cpu_quota") == (2.5, "/gpu.slice")


# -- kills ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", OOM, ids=lambda case: case["name"])
def test_kills_in_the_kernel_log(case: dict[str, Any]) -> None:
    records = [Record(line, 1000.5 + number) for number, line in enumerate(case["log"])]
    found = _oom.kills(records)
    assert [{name: kill[name] for name in wanted} for kill, wanted in zip(found, case["kills"])] == case["kills"]
    assert len(found) == len(case["kills"])


def test_a_kill_has_its_moment_in_both_forms() -> None:
    kill = _oom.kills([Record("Out of memory: Killed process 7 (python3)", 1796108737.656)])[0]
    assert (kill["when"], kill["time"]) == (1796108737.656, "2026-12-01T07:05:37Z")
    assert _oom.kills([Record("Out of memory: Killed process 7 (python3)", None)])[0]["time"] is None


def test_groups_that_count_kills_on_version_2(tmp_path: Path) -> None:
    events = "low 0\nhigh 3\nmax 9\noom 2\noom_kill 1\noom_group_kill 0"
    gather(
        tmp_path,
        {
            **SECOND,
            f"{GROUPS}/memory.events": "oom 0\noom_kill 0",
            f"{GROUPS}/gpu.slice/memory.events": events,
            f"{GROUPS}/gpu.slice/job.scope/memory.events": events,
            f"{GROUPS}/gpu.slice/job.scope/memory.events.local": events,
            f"{GROUPS}/gpu.slice/memory.events.local": "oom 0\noom_kill 0",
            f"{GROUPS}/gpu.slice/quiet.scope/memory.events": "oom 0\noom_kill 0",
            f"{GROUPS}/memory.slice/memory.events": "oom 1\noom_kill 0",
        },
    )
    rows, cut = _oom.groups(Host(str(tmp_path)))
    assert not cut
    shown = {row["group"]: (row["oom_kill"], row["own_oom_kill"], row["max"], row["high"]) for row in rows}
    assert shown == {
        "/gpu.slice": (1, 0, 9, 3),
        "/gpu.slice/job.scope": (1, 1, 9, 3),
        "/memory.slice": (0, None, None, None),
    }


def test_groups_that_count_kills_on_version_1(tmp_path: Path) -> None:
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill {}"
    files = {
        f"{GROUPS}/memory/a.slice/memory.oom_control": control.format(2),
        f"{GROUPS}/memory/a.slice/memory.failcnt": "17",
        f"{GROUPS}/memory/b.slice/memory.oom_control": control.format(0),
        f"{GROUPS}/memory/old.slice/memory.oom_control": "oom_kill_disable 0\nunder_oom 0",
    }
    gather(tmp_path, {**FIRST, **files})
    rows, _cut = _oom.groups(Host(str(tmp_path)))
    assert [(row["group"], row["oom_kill"], row["max"], row["oom"]) for row in rows] == [("/a.slice", 2, 17, None)]


def test_a_closed_kernel_log_is_null_with_the_reason(tmp_path: Path) -> None:
    facts = _oom.gather(Scene(Host(str(tmp_path)), Options(), time.monotonic() + 5))
    assert (facts["kills"], facts["groups"]) == (None, [])
    assert facts["log_reason"] == "/dev/kmsg: cannot be read (No such file or directory)"

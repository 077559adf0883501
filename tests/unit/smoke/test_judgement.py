# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pure part: who is busy, which floor holds, what an end means, what changed, who is an outlier."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _configuration
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._journal import Entry
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Atom
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import (
    _command,
    _compare,
    _death,
    _declared,
    _floors,
    _gpus,
    _history,
    _profiles,
    _run,
    _verdict,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._child import Run
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._model import Gpus, row
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe import _huge_pages, _limits
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe._cgroup import Level
from ansible_collections.gpu_fleet.node.plugins.plugin_utils import _reports

H200 = "NVIDIA H200, 0, 616, 143771, 0, 5, 16, Disabled"
ONE = Gpus(1, ("NVIDIA H200",), (63.01,))


def pci(folder: Path, *kinds: str) -> str:
    for index, kind in enumerate(kinds):
        place = folder / f"0000:00:0{index}.0"
        place.mkdir()
        (place / "vendor").write_text("0x10de\n")
        (place / "class").write_text(kind + "\n")
    return str(folder)


def smi(cards: str | None, processes: str = "") -> Any:
    return lambda words: processes if "compute-apps" in words[1] else cards


def test_an_idle_gpu_may_be_used(tmp_path: Path) -> None:
    found = _gpus.look(smi(H200), None, False, pci(tmp_path, "0x030200", "0x068000"))
    assert found == Gpus(1, ("NVIDIA H200",), (63.01,))


@pytest.mark.parametrize(
    "card",
    [
        "NVIDIA A100, 7, 904, 81920, 0, 4, 16, Disabled",  # used without the driver's reserve
        "NVIDIA A100, 912, [N/A], 81920, 0, 4, 16, Disabled",  # used with it
        "NVIDIA A100, 912, [Not Supported], 81920, [N/A], 4, 16, Disabled",
    ],
)
def test_f24_the_driver_s_reserve_is_nobody_s_use(tmp_path: Path, card: str) -> None:
    assert _gpus.look(smi(card), None, False, pci(tmp_path, "0x030200")).gap is None


@pytest.mark.parametrize(
    ("cards", "processes", "reason"),
    [
        (H200, "4711, 100", "process 4711"),
        ("NVIDIA A100, 912, 904, 81920, 0, 4, 16, Disabled", "", "912 MiB in use"),
        ("NVIDIA A100, 4000, [N/A], 81920, 0, 4, 16, Disabled", "", "4000 MiB in use"),
        ("NVIDIA H200, 0, 616, 143771, 97, 5, 16, Disabled", "", "97 % busy"),
        (None, "", "no answer in time"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", "", "NVIDIA-SMI has failed"),
    ],
)
def test_a_busy_or_silent_gpu_is_left_alone_and_never_passes(
    tmp_path: Path, cards: str | None, processes: str, reason: str
) -> None:
    gap = _gpus.look(smi(cards, processes), None, False, pci(tmp_path, "0x030200")).gap
    assert gap is not None and gap.status == "unknown" and reason in gap.reason and gap.action


def test_slices_of_a_gpu_have_no_floor_of_their_own(tmp_path: Path) -> None:
    found = _gpus.look(smi(H200.replace("Disabled", "Enabled")), None, False, pci(tmp_path, "0x030200"))
    assert found.mig and found.gap is None and _floors.model(found.names[0]) == (0.0, 0.0)


def test_an_older_driver_is_asked_for_what_it_knows(tmp_path: Path) -> None:
    def old(words: Any) -> str:
        asked = words[1].partition("=")[2].split(",")
        unknown = next((name for name in asked if name in ("memory.reserved", "mig.mode.current")), None)
        if unknown:
            return f'Field "{unknown}" is not a valid field to query.'
        return "" if "pid" in asked else "Tesla V100-SXM2-32GB, 900, 32510, 0, 3, 16"

    found = _gpus.look(old, None, False, pci(tmp_path, "0x030200"))
    assert found.gap is None and found.names == ("Tesla V100-SXM2-32GB",) and found.links == (15.76,)


def test_a_busy_gpu_is_used_when_told_to(tmp_path: Path) -> None:
    assert _gpus.look(smi(H200, "4711, 100"), None, True, pci(tmp_path, "0x030200")).gap is None


@pytest.mark.parametrize(("expected", "status"), [(None, "skip"), (0, "skip"), (8, "fail")])
def test_no_gpu_is_a_skip_only_where_none_is_expected(tmp_path: Path, expected: int | None, status: str) -> None:
    gap = _gpus.look(smi(None), expected, False, pci(tmp_path)).gap
    assert gap is not None and gap.status == status


def figure(name: str, value: float, unit: str = "GB/s", spread: float = 0.0, samples: int = 12) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "spread": spread, "samples": samples}


@pytest.mark.parametrize(
    ("kind", "value", "gpus", "own", "status", "source"),
    [
        ("host_to_device_pinned", 55.1, ONE, {}, "pass", "0.8 of the link, 63.01 GB/s"),
        ("host_to_device_pinned", 26.0, ONE, {}, "fail", "0.8 of the link, 63.01 GB/s"),
        ("host_to_device_pinned", 55.1, ONE, {"host_to_device_pinned": 56}, "fail", "validate_memory_floors"),
        ("host_to_device_pageable", 8.8, ONE, {}, "pass", "0.05 of the link, 63.01 GB/s"),
        ("device_to_device", 3856.0, ONE, {}, "pass", "table: NVIDIA H200"),
        ("device_to_device", 3000.0, ONE, {}, "fail", "table: NVIDIA H200"),
        (
            "device_to_device",
            9e9,
            Gpus(1, ("NVIDIA X900",), (63.01,)),
            {},
            "unknown",
            "no floor is known for NVIDIA X900",
        ),
        (
            "host_to_device_pinned",
            9e9,
            Gpus(1, ("NVIDIA H200",), (0.0,)),
            {},
            "unknown",
            "the link of the GPU is not known",
        ),
        ("peer_gpu1", 390.0, ONE, {}, "pass", "table: NVIDIA H200"),
        ("peer_gpu1", 40.0, ONE, {}, "fail", "table: NVIDIA H200"),
        ("peer_gpu1", 40.0, ONE, {"peer": 30}, "pass", "validate_memory_floors"),
        ("peer_gpu1", 40.0, Gpus(1, ("NVIDIA H200 NVL",), (63.01,)), {}, "pass", "0.4 of the link, 63.01 GB/s"),
    ],
)
def test_floors(kind: str, value: float, gpus: Gpus, own: dict[str, float], status: str, source: str) -> None:
    (found,) = _floors.judge([figure(f"bandwidth.gpu0.{kind}", value)], gpus, own)
    assert (found["status"], found["threshold_source"]) == (status, source)
    assert bool(found["action"]) == (status != "pass")


def test_a_slow_numa_node_is_a_warning() -> None:
    figures = [figure("bandwidth.gpu0.from_node0", 55.0), figure("bandwidth.gpu0.from_node1", 40.0)]
    (found,) = _floors.judge(figures, ONE, {})
    assert found["status"] == "warn" and "node0" in found["action"]


def test_the_verdict_is_the_worst_and_skips_alone_are_unknown() -> None:
    def of(*statuses: str) -> str:
        return _verdict.verdict([row("check", "name", status) for status in statuses])

    assert of("pass", "skip") == "pass" and of("pass", "warn") == "warn"
    assert of("pass", "warn", "unknown") == "unknown" and of("unknown", "fail", "pass") == "fail"
    assert of("skip") == "unknown" and of() == "unknown"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("max_split_size_mb=8000", "needs the form name:value"),
        ("expandeable_segments:True", "expandable_segments was meant?"),
        ("expandable_segments:true", "True or False was expected"),
        ("max_split_size_mb:20", "at least 21"),
        ("garbage_collection_threshold:1.5", "between 0 and 1"),
        ("garbage_collection_threshold:0.8,max_split_size_mb:128", ""),
        ("max_split_size_mb:128, expandable_segments:False", ""),
        ("roundup_power2_divisions:[256:1,512:2,>:8],backend:native", ""),
        ("", ""),
    ],
)
def test_f25_allocator_strings(text: str, problem: str) -> None:
    found = _configuration.problems(text)
    assert (found == []) if not problem else (len(found) == 1 and problem in found[0])


def test_f25_blanks_and_concerns() -> None:
    text = "max_split_size_mb:128, expandable_segments:False"
    assert _configuration.normal(text) == "max_split_size_mb:128,expandable_segments:False"
    assert _configuration.concerns(text) == []
    assert "no meaning" in _configuration.concerns("max_split_size_mb:500,expandable_segments:True")[0]


SLICE = Level("/sys/fs/cgroup/gpu.slice", 2)
MEMCG = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/gpu.slice,"
    "task_memcg=/gpu.slice/run-1.scope,task=python3,pid=7,uid=0"
)
GLOBAL = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/x,task=python3,pid=7,uid=0"
)


@pytest.mark.parametrize(
    ("run", "rise", "log", "observed", "words"),
    [
        (Run(running="pinned", code=-9), {"oom_kill": 1}, [MEMCG], "killed", "memory limit of /gpu.slice"),
        (Run(running="pinned", code=-9), {"oom_kill": 1}, [], "killed", "memory limit of /gpu.slice"),
        (Run(running="pinned", code=137), {}, [MEMCG], "SIGKILL", "from outside"),
        (Run(running="pinned", code=-9), {}, [GLOBAL], "killed", "OOM killer of the machine"),
        (Run(running="pinned", code=-9), {}, [], "SIGKILL", "from outside"),
        (Run(running="pinned", late="check"), {"high": 500_000}, [], "throttled", "rose by 500000"),
        (Run(running="import", late="total"), {}, [], "hung", "while torch was imported"),
        (Run(running="fill", late="check", left=(12,)), {}, [], "hung", "process 12 cannot be ended"),
    ],
)
def test_f15_who_ended_the_probe(run: Run, rise: dict[str, int], log: list[str], observed: str, words: str) -> None:
    evidence = _death.Evidence({SLICE: {"high": 1, "oom_kill": 1}}, {SLICE: {"high": 1, "oom_kill": 1}}, log)
    for event, count in rise.items():
        evidence.after[SLICE][event] += count
    found = _death.explain(run, evidence)
    assert found["status"] == "fail" and found["action"]
    assert words in found["reason"] and "CUDA" not in found["reason"]
    if run.code != 137:
        assert found["observed"] == observed


def test_f12_the_limits_of_a_service_are_read_from_its_process() -> None:
    text = Path("/proc/self/limits").read_text(encoding="utf-8")
    assert _command.read_limits(text)[resource.RLIMIT_NOFILE] == resource.getrlimit(resource.RLIMIT_NOFILE)
    line = "Max locked memory         65536                unlimited            bytes     \n"
    assert _command.read_limits(line) == {resource.RLIMIT_MEMLOCK: (65536, resource.RLIM_INFINITY)}


def test_a_slice_lies_below_the_slices_of_its_name() -> None:
    paths = [level.path for level in _command._slice_levels("gpu-train.slice")]
    assert paths[0].endswith("/gpu.slice/gpu-train.slice") and paths[1].endswith("/gpu.slice")


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("received 0 items of ancdata", "nofile"),
        ("OSError: [Errno 24] Too many open files", "nofile"),
        ("unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)", "nofile"),
        ("unable to write to file </torch_1>: No space left on device (28)", "/dev/shm"),
        ("DataLoader worker (pid 3) is killed by signal: Bus error.", "/dev/shm"),
        ("can't start new thread", "nproc"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "nproc"),
        ("OSError: [Errno 12] Cannot allocate memory", "memory"),
        ("DataLoader worker (pid 3) exited unexpectedly", "killed"),
        ("something else", "unknown"),
    ],
)
def test_f27_a_failure_text_names_a_limit(text: str, limit: str) -> None:
    assert _limits.explain(text, _limits.mark(), 3).limit == limit


@pytest.mark.parametrize(
    ("mode", "defrag", "asks", "found", "status"),
    [
        ("always", "always", False, 8, "pass"),
        ("always", "madvise", False, 0, "warn"),
        ("always", "always", False, 0, "fail"),
        ("madvise", "madvise", True, 0, "fail"),
        ("madvise", "defer", True, 0, "warn"),
        ("madvise", "madvise", False, 0, "pass"),
        ("never", "madvise", True, 0, "pass"),
        ("never", "madvise", True, 8, "warn"),
    ],
)
def test_huge_pages_against_their_promise(
    monkeypatch: pytest.MonkeyPatch, mode: str, defrag: str, asks: bool, found: int, status: str
) -> None:
    monkeypatch.setattr(_huge_pages, "chosen", {"enabled": mode, "defrag": defrag}.get)
    monkeypatch.setattr(_huge_pages, "disabled", lambda: False)
    assert _huge_pages.verdict("torch", asks, found, 8).status == status


def test_the_run_before_is_compared_beyond_drop_and_noise() -> None:
    before = [figure("a", 50.0), figure("b", 50.0, spread=5.0), figure("c", 1.0, "s"), figure("d", 5, "bytes")]
    now = [figure("a", 40.0), figure("b", 40.0), figure("c", 1.05, "s"), figure("d", 9, "bytes"), figure("new", 1.0)]
    before.append(figure("collectives.gloo.all_reduce", 1.0))
    now.append(figure("collectives.gloo.all_reduce", 0.1))
    found = {one["name"]: (one["change_percent"], one["worse"]) for one in _compare.previous(now, before, 10.0)}
    assert found == {"a": (-20.0, True), "b": (-20.0, False), "c": (5.0, False)}


def fleet(**values: float) -> dict[str, Any]:
    return {
        host: {
            "profile": "quick",
            "gpus": ["NVIDIA H200"],
            "measurements": [figure("pinned", value)],
            "verdict": "pass",
        }
        for host, value in values.items()
    }


def test_an_outlier_is_named_with_how_far_off_it_is() -> None:
    hosts = fleet(a=55.0, b=55.2, c=54.8, d=55.1, e=54.9, slow=41.0, fast=70.0)
    (found,) = _compare.fleet(hosts)
    assert found["host"] == "slow" and found["median"] == 55.0 and found["off_percent"] == -25.5 and found["hosts"] == 7
    assert found["off_spreads"] > 3.5
    assert "slow: pinned is 41.0 GB/s, -25.5 %" in _reports.outlier(found)


def test_too_few_or_unlike_hosts_have_no_outliers() -> None:
    assert _compare.fleet(fleet(a=55.0, b=55.0, c=55.0, slow=1.0)) == []
    hosts = fleet(a=55.0, b=55.0, c=55.0, d=55.0, other=25.0)
    hosts["other"]["gpus"] = ["NVIDIA A100"]
    assert _compare.fleet(hosts) == []
    assert _compare.fleet(fleet(a=55.0, b=55.0, c=55.0, d=55.0, e=54.0)) == []  # a very even fleet, 2 % off


def test_the_history_keeps_the_newest(tmp_path: Path) -> None:
    for hour in range(5):
        result = {
            "ended": f"2026-01-02T0{hour}:00:00Z",
            "profile": "quick",
            "hour": hour,
            "verdict": "pass",
            "measurements": [],
        }
        _history.keep(str(tmp_path), result, 3)
    (tmp_path / "validate-20270101T000000Z.json").write_text("cut short")
    (tmp_path / "notes.txt").write_text("not ours")
    assert len(_history.runs(str(tmp_path))) == 4
    newest = _history.last(str(tmp_path), "quick")
    assert newest is not None and newest["hour"] == 4 and _history.last(str(tmp_path), "full") is None
    assert (tmp_path / "notes.txt").exists()


def test_the_plan_takes_the_operator_last() -> None:
    checks = _profiles.plan(
        "full", {"bandwidth": {"enabled": True, "mib": 64, "samples": None}, "fill": {"enabled": False}}, True, {}
    )
    assert checks["bandwidth"]["mib"] == 64 and checks["bandwidth"]["samples"] == 30 and "fill" not in checks
    assert all(own["timeout"] > 0 for own in checks.values())


def test_junit_has_a_case_for_each_check() -> None:
    checks = [
        row("c", status, status, reason=f"why {status} <&\x00")
        for status in ("pass", "warn", "fail", "skip", "unknown")
    ]
    results: dict[str, Any] = {"node1": {"verdict": "fail", "msg": "m", "checks": checks}, "node2": {}}
    suites = ElementTree.fromstring(_reports.junit(results, []))
    first, second = suites
    assert [first.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["5", "1", "1", "1"]
    assert [[child.tag for child in case] for case in first] == [
        [],
        ["system-out"],
        ["failure"],
        ["skipped"],
        ["error"],
    ]
    assert second.get("errors") == "1" and "not reached" in str(second[0][0].get("message"))


def test_pages_and_metrics_of_a_fleet() -> None:
    results: dict[str, Any] = fleet(a=55.0)
    results["b"] = {
        "verdict": "fail",
        "msg": "<script>",
        "checks": [row("c", "c", "fail", reason="<b>")],
        "measurements": [],
    }
    page, metrics = _reports.page(results, []), _reports.prometheus(results, [])
    assert "<script>" not in page and "&lt;script&gt;" in page and "http" not in page
    assert 'gpu_fleet_validate_healthy{host="a"} 1' in metrics and 'gpu_fleet_validate_healthy{host="b"} 0' in metrics
    assert 'gpu_fleet_validate_checks{host="b",status="fail"} 1' in metrics
    assert json.dumps(_reports.lines(results, [])).count("fail") == 1


ENTRIES = {
    Atom("sysfs", "/sys/kernel/mm/transparent_hugepage/enabled"): Entry("pages", "always", "madvise"),
    Atom("limits", "* soft nofile"): Entry("logins", None, "65536", known=False),
    Atom("limits", "* hard nofile"): Entry("logins", None, "524288", known=False),
    Atom("limits", "alice soft nofile"): Entry("logins", None, "4096", known=False),
    Atom("limits", "root soft memlock"): Entry("logins", None, "unlimited", known=False),
    Atom("limits", "* soft memlock"): Entry("logins", None, "64", known=False),
    Atom("sysctl", "vm.swappiness"): Entry("memory", "60", "10"),
}


@pytest.mark.parametrize(
    ("user", "limits"),
    [
        ("", None),
        ("root", {"memlock": "unlimited"}),
        ("bob", {"nofile": "65536", "memlock": "64K"}),
        ("alice", {"nofile": "4096", "memlock": "64K"}),
    ],
)
def test_what_the_tuning_declared_is_expected(user: str, limits: dict[str, str] | None) -> None:
    expected = {"thp": "madvise"} if limits is None else {"thp": "madvise", "limits": limits}
    assert _declared.declared(ENTRIES, user) == expected


def test_the_operator_s_expectation_comes_last() -> None:
    found = _run.merged(
        {"thp": "madvise", "limits": {"nofile": "1"}}, {"thp": None, "limits": {"nofile": "2"}, "gpus": 8}
    )
    assert found == {"thp": "madvise", "limits": {"nofile": "2"}, "gpus": 8}


def test_a_torn_journal_is_unknown(tmp_path: Path) -> None:
    place = tmp_path / "var/lib/gpu-fleet/journal.json"
    place.parent.mkdir(parents=True)
    place.write_text("{")
    expected, found = _declared.expectations(Host(str(tmp_path)), "root")
    assert expected == {} and [(one["name"], one["status"]) for one in found] == [("environment.declared", "unknown")]

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Properties of units: normal forms, refusals, reloads, restarts, cgroup versions, other people's drop-ins."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils import _cgroup
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

from ..machine import Box, build, inform, picture, reopen, sysctl, tune, units
from ..manager import Manager

GIB = 2**30
V1 = {"/sys/fs/cgroup/cgroup.controllers": "", "/sys/fs/cgroup/memory/tasks": "", "/sys/fs/cgroup/pids/tasks": ""}


@pytest.fixture
def host(tmp_path: Path) -> Box:
    return build(tmp_path)


def manager(host: Box) -> Manager:
    runner = host.commands._runner
    assert isinstance(runner, Manager)
    return runner


def one(unit: str, name: str, value: Any) -> dict[str, Any]:
    return {"name": "jobs", "units": [{"unit": unit, "property": name, "value": value}]}


def outcomes(result: dict[str, Any]) -> dict[str, str]:
    return {row["key"]: row["outcome"] for row in result["settings"]}


def refused(host: Box, *sets: dict[str, Any], **params: Any) -> str:
    """Return the sentence of a refusal that came before the first write."""
    first = picture(host)
    for check in (True, False):
        with pytest.raises(TuningError) as caught:
            tune(host, *sets, check=check, **params)
    assert picture(host) == first
    return str(caught.value)


@pytest.mark.parametrize(
    ("unit", "name", "value", "normal"),
    [
        ("gpu.slice", "MemoryMax", "4G", str(4 * GIB)),
        ("gpu.slice", "MemoryMax", "4GiB", str(4 * GIB)),
        ("gpu.slice", "MemoryMax", "1.5g", str(3 * GIB // 2)),
        ("gpu.slice", "MemoryMax", "4294967297", str(4 * GIB)),
        ("gpu.slice", "MemoryMax", "max", "infinity"),
        ("gpu.slice", "MemoryMax", "50%", str(65536000 * 1024 // 2 // 65536 * 65536)),
        ("gpu.slice", "MemoryMax", "reserve", str((65536000 * 1024 - 8 * GIB) // 65536 * 65536)),
        ("gpu.slice", "MemoryMax", "reserve:10%", str(65536000 * 1024 * 9 // 10 // 65536 * 65536)),
        ("gpu.slice", "TasksMax", "3%", "15000"),
        ("gpu.slice", "CPUQuota", "400%", "400%"),
        ("gpu.slice", "AllowedCPUs", "3,0-1,2", "0-3"),
        ("gpu.slice", "CPUWeight", "idle", "idle"),
        ("gpu.slice", "ManagedOOMMemoryPressureLimit", "40%", "40%"),
        ("slurmd.service", "LimitNOFILE", "4096", "4096:4096"),
        ("slurmd.service", "LimitMEMLOCK", "unlimited", "infinity:infinity"),
        ("slurmd.service", "LimitMEMLOCK", "1M:infinity", "1048576:infinity"),
        ("slurmd.service", "OOMScoreAdjust", "-900", "-900"),
        ("slurmd.service", "OOMPolicy", "kill", "kill"),
        ("manager", "DefaultTasksMax", "infinity", "infinity"),
    ],
)
def test_values_have_one_form_and_reach_the_manager(host: Box, unit: str, name: str, value: str, normal: str) -> None:
    first = picture(host)
    result = tune(host, one(unit, name, value))
    assert result["settings"][0]["wanted"] == normal and result["settings"][0]["outcome"] == "changed"
    audit = inform(host, one(unit, name, value))
    assert audit["in_sync"] and audit["settings"][0]["live"] == normal and audit["settings"][0]["boot"] == normal
    assert not tune(host, one(unit, name, value))["changed"]
    tune(host, {"name": "jobs"}, state="absent")
    assert picture(host) == first


@pytest.mark.parametrize(
    ("unit", "name", "value", "said"),
    [
        ("gpu", "MemoryMax", "4G", "neither the name of a slice"),
        ("gpu--jobs.slice", "MemoryMax", "4G", "neither the name of a slice"),
        ("gpu.slice", "MemoryMax", "plenty", "is no size"),
        ("gpu.slice", "MemoryMax", "101%", "is no size"),
        ("gpu.slice", "MemoryMax", True, "boolean"),
        ("gpu.slice", "OOMPolicy", "kill", "not of a slice"),
        ("slurmd.service", "DefaultTasksMax", "9", "not of a service"),
        ("gpu.slice", "TasksMax", "0", "is no number of tasks"),
        ("gpu.slice", "CPUQuota", "4", "per cent of one CPU"),
        ("gpu.slice", "AllowedCPUs", "3-1", "is no list of numbers"),
        ("slurmd.service", "LimitNOFILE", "9:8", "above the hard limit"),
        ("slurmd.service", "LimitNOFILE", "2000000", "above fs.nr_open"),
        ("manager", "DefaultLimitNOFILE", "1024:2000000", "above fs.nr_open"),
        ("slurmd.service", "OOMScoreAdjust", "-1000", "inherited by every job"),
        ("slurmd.service", "OOMScoreAdjust", "-1001", "is no OOM score"),
        ("gpu.slice", "MemoryMax", "reserve:100%", "leaves nothing"),
    ],
)
def test_bad_input_is_one_sentence(host: Box, unit: str, name: str, value: Any, said: str) -> None:
    assert said in refused(host, one(unit, name, value))


def test_a_throttle_above_the_limit_is_refused(host: Box) -> None:
    said = refused(host, units("jobs", gpu_slice={"MemoryHigh": "90%", "MemoryMax": "4G"}))
    assert "MemoryHigh" in said and "would never act" in said


def test_a_limit_follows_the_number_of_open_files_of_the_same_call(host: Box) -> None:
    wanted = sysctl(fs__nr_open="2097152"), one("slurmd.service", "LimitNOFILE", "2000000")
    assert tune(host, *wanted)["changed"] and inform(host, *wanted)["in_sync"]


def test_f12_a_service_has_its_old_limit_until_it_is_restarted(tmp_path: Path) -> None:
    host = build(tmp_path, {"/proc/77/limits": "Max locked memory         65536                65536          bytes\n"})
    manager(host).pids["slurmd.service"] = "77"
    wanted = one("slurmd.service", "LimitMEMLOCK", "infinity")
    result = tune(host, wanted)
    assert result["pending"][0]["reason"].startswith("slurmd.service (process 77) runs with 65536:65536")
    assert outcomes(result) == {"slurmd.service LimitMEMLOCK": "pending"}
    assert not tune(host, wanted)["changed"], "waiting for a restart is no change"
    audit = inform(host, wanted)
    assert [row["view"] for row in audit["drift"]] == ["running"] and "65536:65536" in audit["drift"][0]["by"]
    assert audit["settings"][0]["live"] == "infinity:infinity"
    assert "try-restart" not in " ".join(manager(host).calls)
    (tmp_path / "proc/77/limits").write_text("Max locked memory         unlimited            unlimited      bytes\n")
    assert inform(host, wanted)["in_sync"] and tune(host, wanted)["pending"] == []


def test_f12_a_restart_happens_where_it_was_told_to_and_is_needed(tmp_path: Path) -> None:
    old, new = (f"Max locked memory         {word:<20} {word:<20} bytes\n" for word in ("65536", "unlimited"))
    host = build(tmp_path, {"/proc/77/limits": old})
    manager(host).pids["slurmd.service"] = "77"
    wanted = one("slurmd.service", "LimitMEMLOCK", "infinity")
    wanted["units"][0]["restart"] = True
    preview = tune(host, wanted, check=True)
    assert "restarted" in str(preview["changes"]) and "try-restart" not in " ".join(manager(host).calls)
    done = tune(host, wanted)
    assert done["pending"] == [] and manager(host).calls.count("systemctl try-restart -- slurmd.service") == 1
    (tmp_path / "proc/77/limits").write_text(new)
    assert not tune(host, wanted)["changed"]
    assert manager(host).calls.count("systemctl try-restart -- slurmd.service") == 1


def test_f12_what_a_young_process_has_is_its_own_doing(tmp_path: Path) -> None:
    """A daemon that changes its limit itself would be restarted by every run."""
    host = build(
        tmp_path, {"/proc/77/limits": "Max open files            4096                 4096                 files\n"}
    )
    manager(host).pids["slurmd.service"] = "77"
    wanted = one("slurmd.service", "LimitNOFILE", "1024:4096")
    wanted["units"][0]["restart"] = True
    assert "restarted" in str(tune(host, wanted)["changes"])
    began = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    for ticks, again in ((began + 500, False), (began - 500, True)):
        (tmp_path / "proc/77/stat").write_text(f"77 (slurm d) S {' 0' * 18} {int(ticks)} 0\n")
        assert tune(host, wanted, check=True)["changed"] is again
        assert inform(host, wanted)["in_sync"] is not again


def test_f12_a_restart_that_fails_says_what_stands(tmp_path: Path) -> None:
    host = build(
        tmp_path, {"/proc/77/limits": "Max locked memory         65536                65536                bytes\n"}
    )
    real = manager(host)
    real.pids["slurmd.service"] = "77"
    host.commands._runner = lambda words: (1, "Job failed.") if "try-restart" in words else real(words)
    wanted = one("slurmd.service", "LimitMEMLOCK", "infinity")
    wanted["units"][0]["restart"] = True
    with pytest.raises(TuningError, match=r"Job failed.*all settings are in place, and slurmd.service has the old"):
        tune(host, wanted)
    audit = inform(host, wanted)
    assert [row["view"] for row in audit["drift"]] == ["running"]


def test_f12_a_service_that_is_not_there_is_listed(host: Box) -> None:
    first = picture(host)
    result = tune(host, one("nothere.service", "LimitMEMLOCK", "infinity"))
    assert not result["changed"] and "nothere.service is not-found" in result["not_applicable"][0]["reason"]
    assert picture(host) == first
    assert "nothere.service" in refused(host, one("nothere.service", "LimitMEMLOCK", "infinity"), strict=True)


def test_f13_the_more_specific_drop_in_does_not_hide_the_other(host: Box) -> None:
    wanted = units("jobs", user__1000_slice={"TasksMax": "3%"}, user___slice={"MemoryMax": "16G"})
    tune(host, wanted)
    show = manager(host).show("user-1000.slice")
    assert "TasksMax=15000\n" in show and f"MemoryMax={16 * GIB}\n" in show
    names = [path for path in picture(host) if "zz-gpu-fleet" in path]
    assert all(Path(name).name > "10-defaults.conf" for name in names) and not any("user.slice.d" in n for n in names)
    assert _cgroup.path("gpu-train.slice") == "/gpu.slice/gpu-train.slice"
    assert inform(reopen(host), wanted)["in_sync"]
    # What is set for one user alone is not seen as something that the others have yet to hear of.
    more = units("jobs", user__1000_slice={"TasksMax": "4%"}, user___slice={"MemoryMax": "16G"})
    assert tune(host, more)["changed"] and not tune(host, more)["changed"] and inform(host, more)["in_sync"]


def test_f14_what_v1_ignores_is_never_called_applied(tmp_path: Path) -> None:
    host = build(tmp_path, V1)
    wanted = units("jobs", gpu_slice={"MemoryMax": "4G", "MemoryHigh": "3G", "MemorySwapMax": "0"})
    said = refused(host, wanted, strict=True)
    assert "MemoryHigh" in said and "cgroup v1" in said
    result = tune(host, wanted)
    assert outcomes(result) == {
        "gpu.slice MemoryHigh": "not_applicable",
        "gpu.slice MemoryMax": "changed",
        "gpu.slice MemorySwapMax": "not_applicable",
    }
    assert any("gpu.slice MemoryHigh, gpu.slice MemorySwapMax" in text for text in result["warned"])
    assert not any("MemoryHigh" in path for path in picture(host))


@pytest.mark.parametrize("version", [1, 2])
def test_the_kernel_has_the_last_word_on_a_running_group(tmp_path: Path, version: int) -> None:
    tree = {1: {**V1, "/sys/fs/cgroup/memory/gpu.slice/memory.limit_in_bytes": "9223372036854771712\n"}}
    tree[2] = {"/sys/fs/cgroup/gpu.slice/memory.max": "max\n"}
    host = build(tmp_path, tree[version])
    manager(host).groups["gpu.slice"] = "/gpu.slice"
    with pytest.raises(TuningError, match=r"was given 4294967296, but the host now says infinity"):
        tune(host, one("gpu.slice", "MemoryMax", "4G"))


def test_a_word_is_not_compared_with_a_number_of_the_kernel(tmp_path: Path) -> None:
    host = build(tmp_path, {"/sys/fs/cgroup/gpu.slice/cpu.weight": "0\n"})  # as it reads with cpu.idle of 1
    manager(host).groups["gpu.slice"] = "/gpu.slice"
    assert tune(host, one("gpu.slice", "CPUWeight", "idle"))["changed"]


def test_f15_a_throttle_alone_is_warned_about(host: Box, tmp_path: Path) -> None:
    assert any(
        "neither killed nor running" in text for text in tune(host, one("a.slice", "MemoryHigh", "64M"))["warned"]
    )
    both = units("jobs", a_slice={"MemoryHigh": "64M", "MemoryMax": "128M"})
    assert not any("neither killed" in text for text in tune(host, both)["warned"])
    (tmp_path / "proc/meminfo").write_text("MemTotal: 65536000 kB\nSwapTotal: 1024 kB\n")
    assert not any("neither killed" in text for text in tune(host, one("a.slice", "MemoryHigh", "64M"))["warned"])


ALL = units("jobs", gpu_slice={"MemoryMax": "4G"}, slurmd_service={"LimitMEMLOCK": "infinity", "LimitNOFILE": "4096"})


def test_f16_one_reload_for_all_files_and_none_without_need(host: Box) -> None:
    tune(host, ALL)
    assert manager(host).reloads == 1
    tune(host, ALL)
    assert manager(host).reloads == 1
    more = {**ALL, "units": [*ALL["units"][1:], {"unit": "gpu.slice", "property": "MemoryMax", "value": "5G"}]}
    tune(host, more)
    assert manager(host).reloads == 1, "a limit of a slice is set without a reload"
    tune(host, {"name": "jobs"}, state="absent")
    assert manager(host).reloads == 2


def test_f16_a_reload_that_is_not_allowed_waits(host: Box) -> None:
    first = picture(host)
    result = tune(host, ALL, reload="never")
    assert manager(host).reloads == 0
    assert {row["key"] for row in result["pending"]} == {"slurmd.service LimitMEMLOCK", "slurmd.service LimitNOFILE"}
    assert all("daemon-reload" in row["reason"] for row in result["pending"])
    assert not tune(host, ALL, reload="never")["changed"]
    assert not inform(host, ALL)["in_sync"]
    done = tune(host, ALL)
    assert (
        manager(host).reloads == 1 and done["pending"] == [] and {row["kind"] for row in done["changes"]} == {"units"}
    )
    waiting = tune(host, {"name": "jobs"}, state="absent", reload="never")
    assert manager(host).reloads == 1 and {row["key"] for row in waiting["pending"]} == {
        "slurmd.service LimitMEMLOCK",
        "slurmd.service LimitNOFILE",
    }
    tune(host, {"name": "jobs"}, state="absent")
    assert manager(host).reloads == 2 and picture(host) == first


def process(root: Path, number: int, group: str, mounts: str) -> None:
    """Add a process with NVIDIA devices before its eyes."""
    for path, text in ((f"{number}/cgroup", f"0::{group}\n"), (f"{number}/root/dev/nvidiactl", "")):
        (root / "proc" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "proc" / path).write_text(text)
    (root / f"proc/{number}/ns").mkdir()
    (root / f"proc/{number}/ns/mnt").symlink_to(f"mnt:[{mounts}]")


def test_f16_the_daemons_of_containers_are_none(host: Box, tmp_path: Path) -> None:
    process(tmp_path, 1, "/init.scope", "1")
    for number, name in enumerate(("docker.service", "containerd.service", "libpod-conmon-01.scope"), 97):
        process(tmp_path, number, f"/system.slice/{name}", "1")
    assert tune(host, ALL)["pending"] == [] and manager(host).reloads == 1


def test_f16_gpu_containers_hold_a_reload_back(host: Box, tmp_path: Path) -> None:
    process(tmp_path, 1, "/init.scope", "1")
    process(tmp_path, 99, "/system.slice/docker-0123.scope", "2")
    result = tune(host, ALL)
    assert manager(host).reloads == 0 and "docker-0123.scope" in result["pending"][0]["reason"]
    allowed = tune(host, ALL, reload="always")
    assert manager(host).reloads == 1 and any("docker-0123.scope" in text for text in allowed["warned"])


def test_a_drop_in_that_wins_at_boot_is_named_and_refused(tmp_path: Path) -> None:
    theirs = "/etc/systemd/system/gpu.slice.d/zzz-site.conf"
    host = build(tmp_path, {theirs: "[Slice]\nMemoryMax=1G\n"})
    assert theirs in refused(host, one("gpu.slice", "MemoryMax", "4G"))


def test_a_drop_in_that_ours_outranks_is_no_conflict(tmp_path: Path) -> None:
    host = build(tmp_path, {"/etc/systemd/system.control/gpu.slice.d/50-MemoryMax.conf": "[Slice]\nMemoryMax=1G\n"})
    assert tune(host, one("gpu.slice", "MemoryMax", "4G"))["conflicts"] == []


def test_a_default_that_a_later_file_gives_is_refused(tmp_path: Path) -> None:
    theirs = "/etc/systemd/system.conf.d/zzz.conf"
    host = build(tmp_path, {theirs: "[Manager]\nDefaultTasksMax=9\n"})
    assert theirs in refused(host, one("manager", "DefaultTasksMax", "99"))


def test_without_a_manager_nothing_applies(tmp_path: Path) -> None:
    host = build(tmp_path)
    host.commands._runner = lambda _words: (1, "System has not been booted with systemd")
    first = picture(host)
    result = tune(host, one("gpu.slice", "MemoryMax", "4G"))
    assert not result["changed"] and "no systemd manager answers" in result["not_applicable"][0]["reason"]
    assert picture(host) == first


def test_an_image_gets_the_file_only(tmp_path: Path) -> None:
    host = build(tmp_path)
    image = Box(host.root, live=False)
    tune(image, one("gpu.slice", "MemoryMax", "90%"))
    place = tmp_path / "etc/systemd/system/gpu.slice.d/zz-gpu-fleet-jobs-01.conf"
    assert "MemoryMax=90%\n" in place.read_text() and not (tmp_path / "run/systemd/system.control").exists()
    assert "the memory of an image's host is not known" in refused(image, one("gpu.slice", "MemoryMax", "reserve"))

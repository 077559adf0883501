# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the engine promises of single settings: refusals, floors, faces, choices, owners, and unusable journals."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _journal
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

from ..machine import THP, Box, build, inform, kernel, live, picture, sysctl, thp, tune

JOURNAL = "var/lib/gpu-fleet/journal.json"


@pytest.fixture
def host(tmp_path: Path) -> Box:
    return build(tmp_path)


def refused(host: Box, *sets: dict[str, Any], **params: Any) -> str:
    """Return the sentence of a refusal, having seen that it came before the first write, in check mode too."""
    first = picture(host)
    with pytest.raises(TuningError) as caught:
        tune(host, *sets, **params)
    with pytest.raises(TuningError):
        tune(host, *sets, check=True, **params)
    assert picture(host) == first
    sentence = str(caught.value)
    assert "\n" not in sentence and not sentence.endswith(".")
    return sentence


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["250 32000 100 128", "250\t32000\t100\t128", "  250  32000 100   128 \n"])
def test_f01_blanks_and_tabs_are_one(host: Box, value: str, tmp_path: Path) -> None:
    wanted = sysctl(kernel__sem=value, net__ipv4__tcp_rmem=value.replace("32000 100 128", "65536 16777216"))
    assert tune(host, wanted)["changed"]
    stored = (tmp_path / "etc/sysctl.d/zz-gpu-fleet-memory.conf").read_text()
    assert stored.count("kernel.sem = 250 32000 100 128\n") == 1
    for spelling in ("250 32000 100 128", "250\t32000\t100\t128", " 250  32000 100 128 "):
        again = sysctl(kernel__sem=spelling, net__ipv4__tcp_rmem=value.replace("32000 100 128", "65536 16777216"))
        assert not tune(host, again)["changed"]
        assert inform(host, again)["in_sync"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (True, "boolean"),
        ("False", "boolean"),
        ("10\nkernel.sysrq = 1", "line break"),
        ("10\0", "NUL"),
        ("", "empty"),
        ("  ", "empty"),
        (None, "empty"),
        ([4096, 65536], "list"),
        ({"a": 1}, "mapping"),
    ],
)
def test_values_that_cannot_be_meant(host: Box, value: Any, reason: str) -> None:
    sentence = refused(host, sysctl(vm__swappiness=value))
    assert sentence.startswith("vm.swappiness") and reason in sentence
    assert reason in refused(host, {"name": "pages", "sysfs": [{"path": f"{THP}/enabled", "value": value}]})


@pytest.mark.parametrize(
    "key", ["vm", "vm..swappiness", "vm swappiness", "../vm/swappiness", "vm.swap*", "", "vm.", "a=b.c"]
)
def test_keys_that_are_none(host: Box, key: str) -> None:
    assert "sysctl key" in refused(host, {"name": "memory", "sysctl": [{"key": key, "value": "1"}]})


@pytest.mark.parametrize(
    "path", ["/sys", "/proc/sys/vm/swappiness", "/sys/../etc/passwd", "/sys/a*", "sys/a", "/sys/a b"]
)
def test_paths_that_are_none(host: Box, path: str) -> None:
    assert "sysfs path" in refused(host, {"name": "pages", "sysfs": [{"path": path, "value": "1"}]})


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "é"])
def test_set_names_that_are_none(host: Box, name: str) -> None:
    assert "set name" in refused(host, sysctl(name))


def test_slash_keys_and_interfaces_with_dots(host: Box, tmp_path: Path) -> None:
    tune(host, {"name": "net", "sysctl": [{"key": "net/ipv4/conf/eth0.100/rp_filter", "value": "2"}]})
    assert live(host, "/proc/sys/net/ipv4/conf/eth0.100/rp_filter") == "2"
    same = {"name": "net", "sysctl": [{"key": "net.ipv4.conf.eth0/100.rp_filter", "value": "2"}]}
    assert not tune(host, same)["changed"] and inform(host, same)["in_sync"]


# -- keys that are not there, or are not settings ----------------------------------------------------------------------


def test_an_unknown_key_is_never_written_and_a_near_miss_is_named(host: Box, tmp_path: Path) -> None:
    first = picture(host)
    result = tune(host, sysctl(vm__swapiness="10", net__ipv4__no_such_thing_here="1"))
    assert not result["changed"] and picture(host) == first
    reasons = {row["key"]: row["reason"] for row in result["not_applicable"]}
    assert "did you mean vm.swappiness?" in reasons["vm.swapiness"]
    assert reasons["net.ipv4.no_such_thing_here"] == "missing in this kernel"
    assert [text for text in result["warned"] if "vm.swappiness?" in text]
    assert "vm.swapiness" in refused(host, sysctl(vm__swapiness="10"), strict=True)


def test_a_mistyped_first_part_is_named(host: Box) -> None:
    rows = tune(host, sysctl(vn__swappiness="10"))["not_applicable"]
    assert "did you mean vm.swappiness?" in rows[0]["reason"]


def test_a_key_that_moved_to_debugfs_says_so(host: Box) -> None:
    rows = tune(host, sysctl(kernel__sched_min_granularity_ns="10000000"))["not_applicable"]
    assert "debugfs" in rows[0]["reason"]


def test_write_only_keys_are_refused(host: Box, tmp_path: Path) -> None:
    assert "write-only" in refused(host, sysctl(vm__drop_caches="3"))
    (tmp_path / "proc/sys/vm/flush").write_text("")
    (tmp_path / "proc/sys/vm/flush").chmod(0o200)
    assert "write-only" in refused(host, sysctl(vm__flush="1"))


def test_one_way_keys_need_consent_and_stay_pending(host: Box, tmp_path: Path) -> None:
    assert "one_way" in refused(host, sysctl(kernel__kexec_load_disabled="1"))
    row = {"key": "kernel.kexec_load_disabled", "value": "1", "one_way": True}
    agreed = {"name": "lock", "sysctl": [row]}
    tune(host, agreed)
    assert live(host, "/proc/sys/kernel/kexec_load_disabled") == "1"
    for _attempt in range(2):
        result = tune(host, agreed, state="absent")
        assert [row["key"] for row in result["pending"]] == ["kernel.kexec_load_disabled"]
        assert not (tmp_path / "etc/sysctl.d/zz-gpu-fleet-lock.conf").exists()
    (tmp_path / "proc/sys/kernel/kexec_load_disabled").write_text("0\n")  # the reboot
    assert tune(host, agreed, state="absent")["pending"] == []
    assert not (tmp_path / JOURNAL).exists()


def test_consent_for_an_ordinary_key_does_not_make_it_one_way(host: Box) -> None:
    first = picture(host)
    tune(host, {"name": "memory", "sysctl": [{"key": "vm.swappiness", "value": "1", "one_way": True}]})
    tune(host, sysctl(), state="absent")
    assert picture(host) == first


def test_a_one_way_key_is_written_when_all_else_is_done_and_verified(host: Box) -> None:
    first = picture(host)
    host._kernel = lambda place, text: kernel(place, "200" if (place[-10:], text) == ("swappiness", "300") else text)
    row = {"key": "kernel.kexec_load_disabled", "value": "1", "one_way": True}
    with pytest.raises(TuningError, match="the host now says 200"):
        tune(host, {"name": "memory", "sysctl": [row, {"key": "vm.swappiness", "value": "300"}]})
    assert picture(host) == first


# -- what can be written is found by trying ----------------------------------------------------------------------------


def test_f03_read_only_is_decided_for_each_key(host: Box) -> None:
    wanted = sysctl(vm__swappiness="1", net__ipv4__tcp_retries2="5")
    host.read_only = ("/proc/sys/vm",)
    result = tune(host, wanted)
    assert [(row["key"], row["reason"]) for row in result["not_applicable"]] == [
        ("vm.swappiness", "read-only file system")
    ]
    assert live(host, "/proc/sys/net/ipv4/tcp_retries2") == "5" and live(host, "/proc/sys/vm/swappiness") == "60"
    assert not tune(host, wanted)["changed"] and inform(host, wanted)["in_sync"]
    assert "vm.swappiness" in refused(host, wanted, strict=True)


def test_f03_a_read_only_value_that_is_right_already_is_ok(host: Box) -> None:
    host.read_only = ("/proc/sys",)
    result = tune(host, sysctl(vm__swappiness="60"), strict=True)
    assert not result["changed"] and result["settings"][0]["outcome"] == "ok"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ERANGE, errno.EIO])
def test_a_value_that_the_kernel_refuses_is_a_failure_and_all_is_undone(host: Box, number: int) -> None:
    first = picture(host)

    def stubborn(place: str, text: str) -> None:
        if place.endswith("swappiness"):
            raise OSError(number, os.strerror(number))
        kernel(place, text)

    host._kernel = stubborn
    with pytest.raises(TuningError, match=r"swappiness: the kernel refused '300' .*back in its state before it"):
        tune(host, sysctl(vm__swappiness="300", kernel__sem="1 2 3 4"), thp(enabled="never"))
    assert picture(host) == first


def test_a_clamped_value_is_a_failure_with_wanted_and_actual(host: Box) -> None:
    first = picture(host)
    host._kernel = lambda place, text: kernel(place, "200" if (place[-10:], text) == ("swappiness", "300") else text)
    with pytest.raises(TuningError, match=r"vm.swappiness: was given 300, but the host now says 200"):
        tune(host, sysctl(vm__swappiness="300", kernel__sem="1 2 3 4"))
    assert picture(host) == first


def test_thp_comes_before_what_it_moves_and_a_moved_value_is_settled(host: Box, tmp_path: Path) -> None:
    def coupled(place: str, text: str) -> None:
        kernel(place, text)
        if place.endswith("transparent_hugepage/enabled"):  # khugepaged computes the reserve again
            kernel(str(tmp_path / "proc/sys/vm/min_free_kbytes"), "11111" if text == "never" else "67584")

    host._kernel = coupled
    first = picture(host)
    tune(host, sysctl(vm__min_free_kbytes="90000"), thp(enabled="never"))
    assert live(host, "/proc/sys/vm/min_free_kbytes") == "90000"
    tune(host, {"name": "memory"}, {"name": "pages"}, state="absent")
    assert picture(host) == first
    (tmp_path / "proc/sys/vm/min_free_kbytes").write_text("20000\n")
    tune(host, sysctl(vm__min_free_kbytes="90000"), thp(enabled="never"))
    tune(host, {"name": "memory"}, {"name": "pages"}, state="absent")
    assert live(host, "/proc/sys/vm/min_free_kbytes") == "20000", (
        "an original that THP moves on the way back is settled"
    )


# -- floors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("floor", "after"), [("1048576", "1048576"), ("1000", "65530"), ("65530", "65530")])
def test_floors(host: Box, floor: str, after: str, tmp_path: Path) -> None:
    wanted = sysctl(floors={"vm.max_map_count": floor})
    first = picture(host)
    result = tune(host, wanted)
    assert live(host, "/proc/sys/vm/max_map_count") == after
    assert result["changed"] == (after != "65530")
    assert inform(host, wanted)["in_sync"] and not tune(host, wanted)["changed"]
    tune(host, {"name": "memory"}, state="absent")
    assert picture(host) == first


def test_a_floor_is_taken_number_by_number(host: Box) -> None:
    tune(host, sysctl(floors={"net.ipv4.tcp_rmem": "8192 1000 16777216"}))
    assert live(host, "/proc/sys/net/ipv4/tcp_rmem").split() == ["8192", "131072", "16777216"]
    assert "3 numbers" in refused(host, sysctl("other", floors={"vm.swappiness": "1 2 3"}))
    assert "floor" in refused(host, sysctl("other", floors={"vm.swappiness": "ten"}))


def test_a_raised_value_above_our_floor_is_left_alone(host: Box, tmp_path: Path) -> None:
    wanted = sysctl(floors={"vm.max_map_count": "1048576"})
    tune(host, wanted)
    (tmp_path / "proc/sys/vm/max_map_count").write_text("2000000\n")
    assert not tune(host, wanted)["changed"] and inform(host, wanted)["in_sync"]
    result = tune(host, wanted, state="absent")
    assert live(host, "/proc/sys/vm/max_map_count") == "2000000" and "left alone" in result["warned"][0]


def test_a_floor_that_sinks_below_the_original_is_given_up(host: Box) -> None:
    first = picture(host)
    tune(host, sysctl(floors={"vm.max_map_count": "1048576"}))
    tune(host, sysctl(floors={"vm.max_map_count": "1000"}))
    assert picture(host) == first


def test_a_floor_with_a_writer_that_is_not_understood_is_not_in_sync(tmp_path: Path) -> None:
    host = build(tmp_path, {"/etc/rc.local": "#!/bin/sh\nsysctl -w vm.max_map_count=$MAPS\n"})
    (tmp_path / "etc/rc.local").chmod(0o755)
    audit = inform(host, sysctl(floors={"vm.max_map_count": "1000"}))
    assert [(row["view"], row["actual"]) for row in audit["drift"]] == [("boot", "unknown")]


def test_a_floor_does_not_lower_what_another_file_gives_at_boot(tmp_path: Path) -> None:
    host = build(tmp_path, {"/usr/lib/sysctl.d/50-maps.conf": "vm.max_map_count = 2000000\n"})
    tune(host, sysctl(floors={"vm.max_map_count": "1048576"}))
    assert live(host, "/proc/sys/vm/max_map_count") == "1048576"
    stored = tmp_path / "etc/sysctl.d/zz-gpu-fleet-memory.conf"
    assert not stored.exists() or "2000000" in stored.read_text()
    assert inform(host, sysctl(floors={"vm.max_map_count": "1048576"}))["in_sync"]


# -- two faces of one setting ------------------------------------------------------------------------------------------


def test_f05_bytes_and_ratio(host: Box) -> None:
    first = picture(host)
    wanted = sysctl(vm__dirty_bytes="1073741824", vm__dirty_ratio="0")
    tune(host, wanted)
    assert live(host, "/proc/sys/vm/dirty_bytes") == "1073741824" and live(host, "/proc/sys/vm/dirty_ratio") == "0"
    assert inform(host, wanted)["in_sync"] and not tune(host, wanted)["changed"]
    assert inform(host, wanted)["settings"][0]["original"] == "vm.dirty_ratio=20"
    tune(host, sysctl(vm__dirty_ratio="30"))
    assert live(host, "/proc/sys/vm/dirty_ratio") == "30" and live(host, "/proc/sys/vm/dirty_bytes") == "0"
    tune(host, wanted)
    tune(host, {"name": "memory"}, state="absent")
    assert picture(host) == first


def test_f05_both_faces_and_too_few_bytes_are_refused(host: Box) -> None:
    assert "two faces" in refused(host, sysctl(vm__dirty_bytes="1073741824", vm__dirty_ratio="10"))
    assert "two faces" in refused(
        host, sysctl("one", vm__dirty_bytes="1073741824"), sysctl("two", vm__dirty_ratio="10")
    )
    assert "8192" in refused(host, sysctl(vm__dirty_bytes="4096"))
    assert "dirty_ratio" in refused(host, sysctl(vm__dirty_bytes="0"))
    assert "floor" in refused(host, sysctl(floors={"vm.dirty_bytes": "1073741824"}))
    tune(host, sysctl("one", vm__dirty_bytes="1073741824"))
    assert "set one" in refused(host, sysctl("two", vm__dirty_ratio="10"))


# -- huge pages --------------------------------------------------------------------------------------------------------


def test_f06_off_is_all_switches(tmp_path: Path) -> None:
    tree = {
        f"{THP}/enabled": "always madvise [never]\n",
        f"{THP}/shmem_enabled": "[always] within_size advise never deny force\n",
    }
    host = build(tmp_path, tree)
    off = thp(enabled="never", shmem_enabled="never")
    audit = inform(host, off)
    assert not audit["in_sync"] and f"{THP}/shmem_enabled" in {row["key"] for row in audit["drift"]}
    tune(host, off)
    assert "[never]" in live(host, f"{THP}/shmem_enabled") and inform(host, off)["in_sync"]


def test_f07_no_thp_in_this_kernel(tmp_path: Path) -> None:
    host = build(
        tmp_path,
        **{f"{THP}/{name}": None for name in ("enabled", "defrag", "shmem_enabled", "khugepaged/max_ptes_none")},
    )
    first = picture(host)
    result = tune(host, thp(enabled="never"), strict=True)
    assert not result["changed"] and result["settings"][0]["outcome"] == "ok" and picture(host) == first
    result = tune(host, thp(enabled="always"))
    assert not result["changed"] and "missing in this kernel" in result["not_applicable"][0]["reason"]
    assert "strict" in refused(host, thp(enabled="always"), strict=True)


def test_a_word_that_is_not_offered_is_refused(host: Box) -> None:
    assert "always, madvise, never" in refused(host, thp(enabled="sometimes"))


# -- owners ------------------------------------------------------------------------------------------------------------


def test_one_owner_for_each_setting(host: Box) -> None:
    assert "twice" in refused(host, sysctl("one", vm__swappiness="1"), sysctl("two", vm__swappiness="1"))
    assert "twice" in refused(host, sysctl("one"), sysctl("one"))
    same = [{"key": "vm.swappiness", "value": "1"}, {"key": "vm/swappiness", "value": "1"}]
    assert "twice" in refused(host, {"name": "one", "sysctl": same})
    tune(host, sysctl("one", vm__swappiness="1"))
    assert "set one" in refused(host, sysctl("two", vm__swappiness="2"))


def test_a_key_that_moves_keeps_its_original(host: Box) -> None:
    first = picture(host)
    tune(host, sysctl("one", vm__swappiness="1"))
    tune(host, sysctl("one"), sysctl("two", vm__swappiness="2"))
    assert inform(host, sysctl("two", vm__swappiness="2"))["settings"][0]["original"] == "60"
    tune(host, sysctl("two"), state="absent")
    assert picture(host) == first


def test_sets_that_are_not_named_are_left_alone(host: Box) -> None:
    tune(host, sysctl("one", vm__swappiness="1"), sysctl("two", vm__max_map_count="70000"))
    tune(host, sysctl("one"), state="absent")
    assert live(host, "/proc/sys/vm/swappiness") == "60" and live(host, "/proc/sys/vm/max_map_count") == "70000"


def test_a_file_in_our_place_is_given_back_whole(tmp_path: Path) -> None:
    path = "/etc/sysctl.d/zz-gpu-fleet-memory.conf"
    host = build(tmp_path, {path: "# theirs\nkernel.sysrq = 0\n"})
    (tmp_path / path[1:]).chmod(0o640)
    first = picture(host)
    tune(host, sysctl(vm__swappiness="1"))
    assert "theirs" not in (tmp_path / path[1:]).read_text()
    tune(host, sysctl(), state="absent")
    assert picture(host) == first


def test_a_link_in_our_place_is_given_back(host: Box, tmp_path: Path) -> None:
    (tmp_path / "etc/sysctl.d/zz-gpu-fleet-memory.conf").symlink_to("/dev/null")
    first = picture(host)
    tune(host, sysctl(vm__swappiness="1"))
    assert not (tmp_path / "etc/sysctl.d/zz-gpu-fleet-memory.conf").is_symlink()
    tune(host, sysctl(), state="absent")
    assert picture(host) == first


def test_a_folder_in_our_place_is_refused(host: Box, tmp_path: Path) -> None:
    (tmp_path / "etc/sysctl.d/zz-gpu-fleet-memory.conf").mkdir()
    assert "neither a file nor a link" in refused(host, sysctl(vm__swappiness="1"))


@pytest.mark.parametrize("force", [False, True])
def test_a_value_that_somebody_set_since_is_left_alone(host: Box, tmp_path: Path, force: bool) -> None:
    first = picture(host)
    tune(host, sysctl(vm__swappiness="1", vm__max_map_count="70000"))
    (tmp_path / "proc/sys/vm/swappiness").write_text("33\n")
    result = tune(host, sysctl(), state="absent", force=force)
    assert live(host, "/proc/sys/vm/max_map_count") == "65530"
    assert live(host, "/proc/sys/vm/swappiness") == ("60" if force else "33")
    assert bool(result["warned"]) != force
    if force:
        assert picture(host) == first


# -- journals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        '{"version": 2, "entries": [], "transaction": [], "machine": ""}',
        "[]",
        "null",
        '{"version": 1, "entries": [{}]}',
    ],
)
def test_a_journal_that_cannot_be_read_stops_the_run_and_stays(host: Box, tmp_path: Path, damage: str) -> None:
    tune(host, sysctl(vm__swappiness="1"))
    (tmp_path / JOURNAL).write_text(damage)
    assert JOURNAL in refused(host, sysctl(vm__swappiness="2"))
    assert JOURNAL in refused(host, sysctl(), state="absent")
    with pytest.raises(TuningError, match="journal"):
        inform(host, sysctl(vm__swappiness="1"))
    assert (tmp_path / JOURNAL).read_text() == damage


def test_every_torn_length_of_a_journal_is_refused(host: Box, tmp_path: Path) -> None:
    tune(host, sysctl(vm__swappiness="1"))
    whole = (tmp_path / JOURNAL).read_bytes()
    for length in range(len(whole) - 2):
        (tmp_path / JOURNAL).write_bytes(whole[:length])
        with pytest.raises(TuningError):
            _journal.load(host)


def test_the_journal_is_for_root_alone(host: Box, tmp_path: Path) -> None:
    tune(host, sysctl(vm__swappiness="1"))
    assert (tmp_path / JOURNAL).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / JOURNAL).parent.stat().st_mode & 0o777 == 0o700


def test_the_journal_of_a_cloned_machine(host: Box, tmp_path: Path) -> None:
    tune(host, sysctl(vm__swappiness="1"))
    (tmp_path / "etc/machine-id").write_text("f" * 32 + "\n")
    wanted = sysctl(vm__swappiness="1")
    result = tune(host, wanted)
    assert not result["changed"] and "another machine" in result["warned"][0]
    assert tune(host, wanted)["warned"] == []
    assert inform(host, wanted)["settings"][0]["original_reason"] == "never seen on this machine"
    result = tune(host, wanted, state="absent")
    assert [row["key"] for row in result["pending"]] == ["vm.swappiness"]
    assert (
        live(host, "/proc/sys/vm/swappiness") == "1"
        and not (tmp_path / "etc/sysctl.d/zz-gpu-fleet-memory.conf").exists()
    )
    assert not (tmp_path / JOURNAL).exists()


def test_a_full_disk_stops_the_run_before_the_first_change(host: Box, tmp_path: Path) -> None:
    first = picture(host)
    program = (
        "import resource, sys\n"
        "from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _run\n"
        "from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
        "sets = [{'name': 'memory', 'sysctl': [{'key': 'vm.swappiness', 'value': '1'}]}]\n"
        "_run.tune(Host(sys.argv[1], live=True), {'sets': sets}, False)\n"
    )
    path = os.pathsep.join(str(Path(place).parent) for place in sys.modules["ansible_collections"].__path__)
    done = subprocess.run(
        [sys.executable, "-c", program, host.root],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "without a journal nothing is changed" in done.stderr and "File too large" in done.stderr
    assert picture(host) == first
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 64


# -- other trees -------------------------------------------------------------------------------------------------------


def test_an_image_gets_files_only_and_its_clones_roll_back(host: Box, tmp_path: Path) -> None:
    kernel_before = {path: what for path, what in picture(host).items() if path.startswith(("/proc", "/sys"))}
    (tmp_path / "etc/machine-id").write_text("")
    first = picture(host)
    image = Host(str(tmp_path))
    wanted = [sysctl(vm__swappiness="1", floors={"vm.max_map_count": "1048576"}), thp(enabled="never")]
    result = tune(image, *wanted)
    assert result["changed"] and not tune(image, *wanted)["changed"]
    assert {path: what for path, what in picture(host).items() if path.startswith(("/proc", "/sys"))} == kernel_before
    assert inform(image, *wanted)["in_sync"]
    assert inform(image, *wanted)["settings"][0]["live_reason"] == "the kernel of an image is not running"
    (tmp_path / "etc/machine-id").write_text("a" * 32 + "\n")  # a clone boots, and the boot applies our files
    for path, value in {"vm/swappiness": "1", "vm/max_map_count": "1048576"}.items():
        (tmp_path / "proc/sys" / path).write_text(value + "\n")
    kernel(str(tmp_path / f"{THP[1:]}/enabled"), "never")
    assert inform(host, *wanted)["in_sync"] and not tune(host, *wanted)["changed"]
    result = tune(host, {"name": "memory"}, {"name": "pages"}, state="absent")
    assert len(result["pending"]) == 3
    (tmp_path / "etc/machine-id").write_text("")
    after = picture(host)
    assert {path: what for path, what in after.items() if not path.startswith(("/proc", "/sys"))} == {
        path: what for path, what in first.items() if not path.startswith(("/proc", "/sys"))
    }


def test_an_image_is_rolled_back_where_it_lies(host: Box, tmp_path: Path) -> None:
    first = picture(host)
    image = Host(str(tmp_path))
    tune(image, sysctl(vm__swappiness="1"))
    tune(image, sysctl(), state="absent")
    assert picture(host) == first


def test_links_in_an_image_stay_in_it(host: Box, tmp_path: Path) -> None:
    (tmp_path / "etc/sysctl.d/README").unlink()
    (tmp_path / "etc/sysctl.d").rmdir()
    (tmp_path / "etc/sysctl.d").symlink_to("/usr/local/sysctl.d")
    (tmp_path / "usr/local/sysctl.d").mkdir(parents=True)
    tune(Host(str(tmp_path)), sysctl(vm__swappiness="1"))
    assert (tmp_path / "usr/local/sysctl.d/zz-gpu-fleet-memory.conf").exists()


def test_a_host_without_systemd_says_what_is_missing(tmp_path: Path) -> None:
    host = build(tmp_path, **{"/run/systemd/system/keep": None})
    result = tune(host, sysctl(vm__swappiness="1"), thp(enabled="never"))
    assert live(host, "/proc/sys/vm/swappiness") == "1"
    assert len([text for text in result["warned"] if "at boot" in text]) == 2
    audit = inform(host, sysctl(vm__swappiness="1"), thp(enabled="never"))
    assert audit["in_sync"] and "at boot" in audit["settings"][0]["boot_reason"]


def test_the_journal_holds_what_a_rollback_needs(host: Box, tmp_path: Path) -> None:
    tune(host, sysctl(vm__swappiness="1"))
    rows = json.loads((tmp_path / JOURNAL).read_text())["entries"]
    assert [(row["key"], row["original"], row["set"]) for row in rows if row["kind"] == "sysctl"] == [
        ("vm.swappiness", "60", "memory")
    ]


def test_the_preview_shows_all_views(host: Box, tmp_path: Path) -> None:
    (tmp_path / "usr/lib/sysctl.d/50-default.conf").write_text("vm.swappiness = 30\n")
    views = tune(host, sysctl(vm__swappiness="1"), check=True)["diff"][0]
    assert "wanted 1 | live 60 | stored none | boot 30 (by /usr/lib/sysctl.d/50-default.conf:1)" in views["before"]
    assert "wanted 1 | live 1 | stored 1 | boot 1 (by /etc/sysctl.d/zz-gpu-fleet-memory.conf)" in views["after"]

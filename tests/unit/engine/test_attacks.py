# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attacks: odd spellings, odd hosts, odd files of other people, each with the right outcome."""

from __future__ import annotations

import builtins
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _journal
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

from ..machine import THP, TREE, build, inform, live, picture, sysctl, thp, tune

FILE = "/etc/sysctl.d/zz-gpu-fleet-memory.conf"


@pytest.mark.parametrize("value", ["02000000", "2_000_000", "+2000000"])
def test_a_floor_is_stored_as_the_kernel_reads_it(tmp_path: Path, value: str) -> None:
    host = build(tmp_path)
    tune(host, sysctl(floors={"vm.max_map_count": value}))
    assert "vm.max_map_count = 2000000\n" in (host.read(FILE) or "")


@pytest.mark.parametrize("key", ["vm.dirty_bytes", "fs.nr_open"])
@pytest.mark.parametrize("value", ["²", "9" * 5000])
def test_odd_digits_are_one_sentence(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(TuningError):
        tune(build(tmp_path), {"name": "memory", "sysctl": [{"key": key, "value": value}]})


@pytest.mark.parametrize("value", ["²", "9" * 5000])
def test_odd_digits_in_a_limit_are_one_sentence(tmp_path: Path, value: str) -> None:
    row = {"domain": "*", "type": "-", "item": "memlock", "value": value}
    with pytest.raises(TuningError):
        tune(build(tmp_path), {"name": "memory", "limits": [row]})


def test_one_attribute_has_one_spelling(tmp_path: Path) -> None:
    host = build(tmp_path)
    rows = [{"path": f"{THP}/enabled", "value": "never"}, {"path": f"{THP}/./enabled", "value": "madvise"}]
    with pytest.raises(TuningError):
        tune(host, {"name": "pages", "sysfs": rows})


def test_one_owner_whatever_the_spelling(tmp_path: Path) -> None:
    host = build(tmp_path)
    tune(host, thp("one", enabled="never"))
    with pytest.raises(TuningError):
        tune(host, {"name": "two", "sysfs": [{"path": f"{THP}/./enabled", "value": "madvise"}]})


@pytest.mark.parametrize("line", ["vm.max_map_count = 262144 # for the search engine", "vm.max_map_count = 0x40000"])
def test_a_sloppy_line_of_somebody_else_does_not_stop_a_floor(tmp_path: Path, line: str) -> None:
    host = build(tmp_path, {"/etc/sysctl.d/50-x.conf": line + "\n"})
    tune(host, sysctl(floors={"vm.max_map_count": "1048576"}))
    assert (host.read("/proc/sys/vm/max_map_count") or "").strip() == "1048576"


def test_folders_shared_by_two_sets_go_with_the_last(tmp_path: Path) -> None:
    host = build(tmp_path, {"/etc/sysctl.d/README": None})
    before = picture(host)
    tune(host, sysctl("one", vm__swappiness="1"))
    tune(host, sysctl("two", vm__dirty_ratio="5"))
    tune(host, {"name": "one"}, state="absent")
    tune(host, {"name": "two"}, state="absent")
    assert picture(host) == before


def test_a_folder_of_ours_goes_though_the_file_was_removed_by_hand(tmp_path: Path) -> None:
    host = build(tmp_path, {"/etc/sysctl.d/README": None})
    before = picture(host)
    tune(host, sysctl(vm__swappiness="1"))
    os.unlink(tmp_path / FILE[1:])
    tune(host, {"name": "memory"}, state="absent")
    assert picture(host) == before


def test_a_narrow_umask_does_not_lock_folders(tmp_path: Path) -> None:
    host = build(tmp_path, {"/etc/sysctl.d/README": None})
    old = os.umask(0o077)
    try:
        tune(host, sysctl(vm__swappiness="1"))
    finally:
        os.umask(old)
    assert oct((tmp_path / "etc/sysctl.d").stat().st_mode & 0o777) == "0o755"


def test_a_journal_of_a_later_version_is_one_sentence(tmp_path: Path) -> None:
    host = build(tmp_path)
    tune(host, sysctl(vm__swappiness="1"))
    place = tmp_path / _journal.PATH[1:]
    data = json.loads(place.read_text())
    data["entries"][0]["kind"] = "modprobe"
    place.write_text(json.dumps(data))
    with pytest.raises(TuningError):
        tune(host, {"name": "memory"}, state="absent")


def test_without_a_boot_reader_no_file_is_refused(tmp_path: Path) -> None:
    host = build(
        tmp_path,
        {
            "/run/systemd/system/keep": None,
            "/usr/lib/systemd/systemd": None,
            "/run/systemd/mind.json": None,
            "/etc/sysctl.conf": "vm.swappiness = 60\n",
        },
    )
    tune(host, sysctl(vm__swappiness="10"))


def test_a_key_that_may_not_be_read_is_not_applicable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = build(tmp_path)

    def denied(place: Any, *rest: Any) -> Any:
        if str(place).endswith("vm/swappiness"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)
        return builtins.open(place, *rest)

    monkeypatch.setattr("ansible_collections.gpu_fleet.node.plugins.module_utils._host.open", denied, raising=False)
    result = tune(host, sysctl(vm__swappiness="10", vm__dirty_ratio="5"))
    assert [row["key"] for row in result["not_applicable"]] == ["vm.swappiness"]


def test_a_condition_of_tuned_may_be_a_variable(tmp_path: Path) -> None:
    text = "[variables]\nr=model name\\s+:.*AMD\n[vm.amd]\ntype=vm\ncpuinfo_regex=${r}\ntransparent_hugepages=always\n"
    host = build(
        tmp_path,
        {
            "/etc/tuned/active_profile": "ours\n",
            "/etc/tuned/ours/tuned.conf": text,
            "/etc/systemd/system/multi-user.target.wants/tuned.service": "",
            "/proc/cpuinfo": "model name\t: AMD EPYC\n",
        },
    )
    result = tune(host, thp(enabled="never"))
    assert [row["theirs"] for row in result["conflicts"]] == ["always"]


SHELL = [
    f"cd {THP} && echo always > enabled",
    f"cd {THP}\necho always > enabled",
    f"F={THP}/enabled\necho always > $F",
    f'F={THP}/enabled; echo always > "$F"',
    f"D={THP}\necho always > $D/enabled",
    f"[ -w {THP}/enabled ] && echo always >{THP}/enabled",
    f"printf '%s' always > {THP}/enabled",
    f"cat > {THP}/enabled <<EOF\nalways\nEOF",
    f"tee {THP}/enabled <<< always",
    f"echo always | tee {THP}/defrag {THP}/enabled",
    f"python3 -c \"open('{THP}/enabled','w').write('always')\"",
    f"echo always | dd of={THP}/enabled",
    f"for f in {THP}/enabled {THP}/defrag; do echo always > $f; done",
    f"for f in {THP}/*; do echo always > $f; done",
    f"echo always >| {THP}/enabled",
    f"echo always 1> {THP}/enabled",
    f"cp /etc/thp {THP}/enabled",
]


@pytest.mark.parametrize("script", SHELL)
def test_scripts_that_write(tmp_path: Path, script: str) -> None:
    host = build(tmp_path, {"/etc/rc.d/rc.local": "#!/bin/sh\n" + script + "\n"})
    os.chmod(tmp_path / "etc/rc.d/rc.local", 0o755)
    assert tune(host, thp(enabled="never"))["conflicts"] != []


SYSCTL = [
    "sysctl vm.swappiness=60",
    "sysctl -w vm/swappiness=60",
    "sysctl -qw vm.swappiness=60",
    "/sbin/sysctl -w 'vm.swappiness = 60'",
    "sysctl --write vm.swappiness=60",
    "sysctl -w \\\n vm.swappiness=60",
    "echo 60 > /proc/sys/vm/swappiness",
    "cd /proc/sys/vm; echo 60 > swappiness",
    "sysctl -w vm.dirty_ratio=3 vm.swappiness=60",
    "sysctl -p/etc/my.conf",
    "sysctl --load=/etc/my.conf",
    "sysctl -p /etc/other.conf /etc/my.conf",
    "sysctl -f /etc/my.conf",
    "sysctl -e -p /etc/my.conf",
    "sysctl -ep /etc/my.conf",
    "sysctl -qp /etc/my.conf",
]


@pytest.mark.parametrize("script", SYSCTL)
def test_scripts_that_write_sysctl(tmp_path: Path, script: str) -> None:
    host = build(tmp_path, {"/etc/rc.d/rc.local": "#!/bin/sh\n" + script + "\n", "/etc/my.conf": "vm.swappiness=60\n"})
    os.chmod(tmp_path / "etc/rc.d/rc.local", 0o755)
    assert tune(host, sysctl(vm__swappiness="10"))["conflicts"] != []


def test_nr_open_is_not_lowered_below_the_limit_of_somebody_else(tmp_path: Path) -> None:
    host = build(tmp_path, {"/etc/security/limits.conf": "* hard nofile 1048576\n"})
    with pytest.raises(TuningError):
        tune(host, sysctl(fs__nr_open="65536"))


def test_nr_open_may_be_raised_although_somebody_asks_for_more(tmp_path: Path) -> None:
    host = build(tmp_path, {"/etc/security/limits.conf": "* hard nofile 4194304\n"})
    assert tune(host, sysctl(fs__nr_open="2097152"))["changed"]
    assert tune(host, {"name": "memory"}, state="absent")["changed"]


def test_xattrs_of_a_link_come_back(tmp_path: Path) -> None:
    host = build(tmp_path, {"/etc/hand.conf": "x\n"})
    place = tmp_path / FILE[1:]
    place.symlink_to("../hand.conf")
    os.setxattr(place, "trusted.note", b"1", follow_symlinks=False)
    tune(host, sysctl(vm__swappiness="1"))
    tune(host, {"name": "memory"}, state="absent")
    assert os.listxattr(place, follow_symlinks=False) == ["trusted.note"]


def test_mode_and_xattr_of_a_file_come_back(tmp_path: Path) -> None:
    host = build(tmp_path, {FILE: "vm.swappiness=3\n"})
    place = tmp_path / FILE[1:]
    os.chown(place, 1234, 2345)
    os.chmod(place, 0o6750)
    os.setxattr(place, "user.note", b"1")
    os.setxattr(place, "trusted.note", b"1")
    first = picture(host)
    tune(host, sysctl(vm__swappiness="1"))
    tune(host, {"name": "memory"}, state="absent")
    assert picture(host) == first
    assert os.listxattr(place) and set(os.listxattr(place)) == {"user.note", "trusted.note"}


def test_hard_link_in_our_place(tmp_path: Path) -> None:
    host = build(tmp_path, {"/etc/hand.conf": "vm.swappiness=3\n"})
    place = tmp_path / FILE[1:]
    os.link(tmp_path / "etc/hand.conf", place)
    tune(host, sysctl(vm__swappiness="1"))
    assert (tmp_path / "etc/hand.conf").read_text() == "vm.swappiness=3\n"
    tune(host, {"name": "memory"}, state="absent")
    assert place.read_text() == "vm.swappiness=3\n"


def test_exact_to_floor_and_back(tmp_path: Path) -> None:
    host = build(tmp_path)
    first = picture(host)
    for one in (
        sysctl(vm__max_map_count="100000"),
        sysctl(floors={"vm.max_map_count": "200000"}),
        sysctl(floors={"vm.max_map_count": "70000"}),
        sysctl(vm__max_map_count="65530"),
        sysctl(floors={"vm.max_map_count": "100"}),
        sysctl(vm__max_map_count="5"),
    ):
        tune(host, one)
        again = tune(host, one)
        assert not again["changed"], (one, again["changes"])
        assert inform(host, one)["in_sync"], one
    tune(host, {"name": "memory"}, state="absent")
    assert picture(host) == first


def test_faces_in_all_orders(tmp_path: Path) -> None:
    host = build(tmp_path)
    first = picture(host)
    for key, value in (
        ("vm__dirty_bytes", "1000000"),
        ("vm__dirty_ratio", "5"),
        ("vm__dirty_bytes", "9000000"),
        ("vm__dirty_ratio", "20"),
        ("vm__dirty_ratio", "0"),
    ):
        one = sysctl(**{key: value})
        tune(host, one)
        assert not tune(host, one)["changed"], (key, value)
        assert inform(host, one)["in_sync"], (key, value)
    tune(host, {"name": "memory"}, state="absent")
    assert picture(host) == first


def test_a_set_that_lost_its_file_and_a_foreign_one(tmp_path: Path) -> None:
    host = build(tmp_path)
    tune(host, sysctl(vm__swappiness="1"))
    (tmp_path / FILE[1:]).write_text("other\n")
    tune(host, sysctl(vm__swappiness="1"))
    tune(host, {"name": "memory"}, state="absent")
    assert not (tmp_path / FILE[1:]).exists()


def test_immutable_like_failure_is_undone(tmp_path: Path) -> None:
    host = build(tmp_path)
    tune(host, sysctl(vm__swappiness="1"))
    host.read_only = ("/proc/sys/vm",)
    result = tune(host, {"name": "memory"}, state="absent")
    assert result["not_applicable"]
    host.read_only = ()
    again = tune(host, {"name": "memory"}, state="absent")
    assert again["changed"]
    assert live(host, "/proc/sys/vm/swappiness") == "60"


def test_read_only_from_now_on(tmp_path: Path) -> None:
    host = build(tmp_path)
    one = sysctl(vm__swappiness="1", vm__dirty_ratio="4")
    tune(host, one)
    host.read_only = ("/proc/sys/vm/swappiness",)
    tune(host, one)
    assert not tune(host, one)["changed"]
    host.read_only = ()
    tune(host, {"name": "memory"}, state="absent")
    assert live(host, "/proc/sys/vm/swappiness") == "60"


def test_moves_between_sets_and_back(tmp_path: Path) -> None:
    host = build(tmp_path)
    first = picture(host)
    tune(host, sysctl("a", vm__swappiness="1"), sysctl("b", vm__dirty_ratio="4"))
    tune(host, sysctl("b", vm__swappiness="2"), sysctl("a", vm__dirty_ratio="5"))
    assert not tune(host, sysctl("b", vm__swappiness="2"), sysctl("a", vm__dirty_ratio="5"))["changed"]
    tune(host, {"name": "a"}, state="absent")
    assert live(host, "/proc/sys/vm/dirty_ratio") == "20" and live(host, "/proc/sys/vm/swappiness") == "2"
    tune(host, {"name": "b"}, state="absent")
    assert picture(host) == first


def test_masks_and_layers(tmp_path: Path) -> None:
    host = build(tmp_path, {"/usr/lib/sysctl.d/zzz.conf": "vm.swappiness=3\n"})
    (tmp_path / "etc/sysctl.d/zzz.conf").symlink_to("/dev/null")
    assert tune(host, sysctl(vm__swappiness="1"))["conflicts"] == []


def test_case_of_two_runs_rollback_after_reboot(tmp_path: Path) -> None:
    host = build(tmp_path)
    tune(host, sysctl(vm__dirty_bytes="1000000"))
    (tmp_path / "proc/sys/vm/dirty_bytes").write_text("0\n")
    (tmp_path / "proc/sys/vm/dirty_ratio").write_text("20\n")
    first = tune(host, {"name": "memory"}, state="absent")
    assert not (tmp_path / FILE[1:]).exists() and first["changed"]


ROW = {"kind": "sysctl", "key": 1, "set": "a", "original": None, "applied": None, "known": True, "one_way": False}
ROW["folders"] = []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "x",
        "[]",
        "{}",
        "null",
        "1",
        '"x"',
        '{"version": 1}',
        "[" * 100000,
        '{"version": 1, "machine": 1, "entries": {}, "transaction": {}}',
        json.dumps({"version": 1, "machine": TREE["/etc/machine-id"].strip(), "entries": [ROW], "transaction": []}),
    ],
)
def test_bad_journals(tmp_path: Path, text: str) -> None:
    host = build(tmp_path, {"/var/lib/gpu-fleet/journal.json": text})
    with pytest.raises(TuningError):
        tune(host, sysctl(vm__swappiness="1"))
    assert (tmp_path / "var/lib/gpu-fleet/journal.json").read_text() == text

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The snapshot tool sees every sort of difference that a rollback could leave, and nothing else."""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import snapshot

TREE = {
    "proc/sys/vm/swappiness": "60\n",
    "proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
    "proc/sys/kernel/random/uuid": "one\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/kernel/mm/transparent_hugepage/khugepaged/full_scans": "1\n",
    "etc/sysctl.d/50-vendor.conf": "vm.swappiness = 60\n",
    "usr/lib/tmpfiles.d/vendor.conf": "d /run/vendor\n",
    "usr/local/bin/tool": "#!/bin/sh\n",
    "var/lib/systemd/random-seed": "one",
    "var/lib/vendor/state": "one",
    "home/user/file": "one",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Plant a small host."""
    for name, content in TREE.items():
        place = tmp_path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content, encoding="utf-8")
    (tmp_path / "etc/link").symlink_to("sysctl.d/50-vendor.conf")
    return tmp_path


def rewrite(name: str) -> Callable[[Path], object]:
    """Plant other content in a file."""
    return lambda root: (root / name).write_text("other\n", encoding="utf-8")


def relink(root: Path) -> None:
    """Point the link elsewhere."""
    (root / "etc/link").unlink()
    (root / "etc/link").symlink_to("elsewhere")


PLANTED = {
    "sysctl": (rewrite("proc/sys/vm/swappiness"), "/proc/sys/vm/swappiness: value: '60\\n' -> 'other\\n'"),
    "tabs": (
        lambda root: (root / "proc/sys/net/ipv4/tcp_rmem").write_text("4096 131072 6291456\n", encoding="utf-8"),
        "/proc/sys/net/ipv4/tcp_rmem: value: '4096\\t131072\\t6291456\\n' -> '4096 131072 6291456\\n'",
    ),
    "sysfs": (
        rewrite("sys/kernel/mm/transparent_hugepage/enabled"),
        "/sys/kernel/mm/transparent_hugepage/enabled: value: 'always [madvise] never\\n' -> 'other\\n'",
    ),
    "content": (rewrite("etc/sysctl.d/50-vendor.conf"), "/etc/sysctl.d/50-vendor.conf: content: "),
    "mode": (
        lambda root: (root / "usr/local/bin/tool").chmod(0o4755),
        "/usr/local/bin/tool: mode: '-rw-r--r--' -> '-rwsr-xr-x'",
    ),
    "folder mode": (lambda root: (root / "var/lib/vendor").chmod(0o700), "/var/lib/vendor: mode: "),
    "xattr": (
        lambda root: os.setxattr(root / "var/lib/vendor/state", "user.planted", b"x"),
        "/var/lib/vendor/state: xattrs: '{}' -> '{\"user.planted\": \"eA==\"}'",
    ),
    "link": (relink, "/etc/link: content: 'sysctl.d/50-vendor.conf' -> 'elsewhere'"),
    "new file": (rewrite("etc/sysctl.d/99-left.conf"), "/etc/sysctl.d/99-left.conf: added"),
    "new folder": (lambda root: (root / "var/lib/gpu-fleet").mkdir(), "/var/lib/gpu-fleet: added"),
    "removed file": (
        lambda root: (root / "usr/lib/tmpfiles.d/vendor.conf").unlink(),
        "/usr/lib/tmpfiles.d/vendor.conf: removed",
    ),
    "file becomes link": (
        lambda root: ((root / "usr/local/bin/tool").unlink(), (root / "usr/local/bin/tool").symlink_to("/bin/sh")),
        "/usr/local/bin/tool: mode: '-rw-r--r--' -> 'lrwxrwxrwx'",
    ),
}


@pytest.fixture(autouse=True)
def _fixed_umask() -> object:
    """Make modes of planted files the same for everybody."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(("plant", "expected"), PLANTED.values(), ids=PLANTED)
def test_planted_difference_is_named(root: Path, plant: Callable[[Path], object], expected: str) -> None:
    before = snapshot.take(root)
    plant(root)
    lines = snapshot.compare(before, snapshot.take(root))
    assert [line for line in lines if line.startswith(expected)], lines
    assert len({line.split(":")[0] for line in lines}) == 1, lines


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("user", "group", "field"), [(12345, -1, "owner"), (-1, 12345, "group")])
def test_owner_and_group_are_seen(root: Path, user: int, group: int, field: str) -> None:
    before = snapshot.take(root)
    os.chown(root / "var/lib/vendor/state", user, group)
    assert snapshot.compare(before, snapshot.take(root)) == [f"/var/lib/vendor/state: {field}: 'root' -> '12345'"]


@pytest.mark.parametrize(
    "name",
    [
        "proc/sys/kernel/random/uuid",
        "sys/kernel/mm/transparent_hugepage/khugepaged/full_scans",
        "var/lib/systemd/random-seed",
        "home/user/file",
    ],
)
def test_counters_and_other_places_are_left_out(root: Path, name: str) -> None:
    before = snapshot.take(root)
    rewrite(name)(root)
    assert snapshot.compare(before, snapshot.take(root)) == []


def test_same_host_has_no_difference(root: Path) -> None:
    assert snapshot.compare(snapshot.take(root), snapshot.take(root)) == []
    assert len(snapshot.take(root)) > len(TREE) - 4


@pytest.mark.parametrize(
    "setting",
    [
        "/proc/sys/vm/swappiness",
        "/proc/sys/kernel/random/read_wakeup_threshold",
        "/sys/kernel/mm/ksm/pages_to_scan",
        "/sys/kernel/mm/ksm/run",
        "/sys/kernel/mm/ksm/stable_node_chains_prune_millisecs",
        "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        "/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none",
        "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
        "/etc/machine-id",
        "/var/lib/gpu-fleet/journal.json",
    ],
)
def test_no_setting_is_taken_for_a_counter(setting: str) -> None:
    assert not snapshot.ignored(setting)


def test_every_exception_has_a_reason_and_stands_alone() -> None:
    patterns = [pattern for pattern, _reason in snapshot.IGNORED]
    assert all(reason.strip() for _pattern, reason in snapshot.IGNORED)
    assert not [(a, b) for a in patterns for b in patterns if a != b and fnmatch.fnmatchcase(a, b)]
    assert not set(patterns) & {*snapshot.VALUES, *snapshot.FILES}


@pytest.mark.parametrize(("planted", "status"), [(False, 0), (True, 1)])
def test_command_line(root: Path, tmp_path_factory: pytest.TempPathFactory, planted: bool, status: int) -> None:
    out = tmp_path_factory.mktemp("out")
    tool = [sys.executable, snapshot.__file__]
    subprocess.run([*tool, "take", out / "a", "--root", root], check=True)
    if planted:
        rewrite("etc/new")(root)
    subprocess.run([*tool, "take", out / "b", "--root", root], check=True)
    answer = subprocess.run([*tool, "compare", out / "a", out / "b"], check=False, text=True, capture_output=True)
    assert answer.returncode == status
    assert ("/etc/new: added" in answer.stdout) is planted
    assert json.loads((out / "a").read_text(encoding="utf-8"))["/proc/sys/vm/swappiness"] == {"value": "60\n"}

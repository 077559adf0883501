# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which malloc is in force, what is preloaded and whether it is there (F26)."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils import _libraries
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import (
    _elf,
    _environment,
    _malloc,
    _maps,
    _processes,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Options, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

MISSING = "/nonexistent/libjemalloc.so.2"
LIBC = "/usr/lib64/libc.so.6"
JEMALLOC = "/usr/lib64/libjemalloc.so.2"


def tree(root: Path, files: dict[str, str]) -> Host:
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return Host(str(root))


def scene(host: Host, **options: Any) -> Scene:
    return Scene(host, Options(**options), time.monotonic() + 10)


# -- the library's path ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "files", "machine", "path"),
    [
        ("jemalloc", [JEMALLOC], "x86_64", JEMALLOC),
        ("jemalloc", ["/usr/lib/aarch64-linux-gnu/libjemalloc.so.2"], "aarch64", None),
        ("jemalloc", ["/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"], "x86_64", None),
        ("jemalloc", ["/usr/lib64/libjemalloc.so.1", JEMALLOC], "x86_64", JEMALLOC),
        ("jemalloc", ["/usr/lib/libjemalloc.so.2"], "x86_64", None),
        ("tcmalloc", ["/usr/lib64/libtcmalloc_minimal.so.4", "/usr/lib64/libtcmalloc.so.4"], "x86_64", None),
        ("tcmalloc", ["/usr/lib64/libtcmalloc_minimal.so.4"], "x86_64", None),
        ("mimalloc", ["/usr/lib64/libmimalloc.so.2.1", "/usr/lib64/libmimalloc.so.1.8"], "x86_64", None),
        ("jemalloc", ["/usr/local/lib/libjemalloc.so.2"], "x86_64", None),
    ],
)
def test_f26_the_path_is_that_of_the_distribution(
    tmp_path: Path, name: str, files: list[str], machine: str, path: str | None
) -> None:
    host = tree(tmp_path, dict.fromkeys(files, ""))
    for file in files:
        (tmp_path / file[1:]).write_bytes(elf(_libraries.PROCESSORS[machine]))
    expected = path or (files[1] if name == "tcmalloc" and len(files) > 1 else files[0])
    assert _libraries.find(host, name, machine) == expected


@pytest.mark.parametrize(
    ("release", "package"),
    [
        ("ID=debian\n", "the package libjemalloc2"),
        ('ID=ubuntu\nID_LIKE="debian"\n', "the package libjemalloc2"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "the package jemalloc (from EPEL)"),
        ('ID="centos"\nID_LIKE="rhel fedora"\n', "the package jemalloc (from EPEL)"),
        ('ID="opensuse-leap"\n', "the package libjemalloc2"),
        ("ID=plan9\n", "the package of jemalloc for this distribution"),
    ],
)
def test_f26_nowhere_is_a_refusal_that_names_the_package(tmp_path: Path, release: str, package: str) -> None:
    host = tree(tmp_path, {"/etc/os-release": release, "/usr/lib64/libjemalloc.so": "a link for linkers is not enough"})
    with pytest.raises(TuningError, match="no library of this name is installed for x86_64") as refusal:
        _libraries.find(host, "jemalloc", "x86_64")
    assert str(refusal.value).endswith(f"install {package}")


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01" + bytes(12) + struct.pack("<H", machine)


def test_f26_a_library_of_another_processor_is_passed_over(tmp_path: Path) -> None:
    host = tree(tmp_path, {"/usr/lib64/libjemalloc.so.2": "", "/usr/local/lib/libjemalloc.so.2": ""})
    (tmp_path / "usr/lib64/libjemalloc.so.2").write_bytes(elf(62))
    (tmp_path / "usr/local/lib/libjemalloc.so.2").write_bytes(elf(183))
    assert _libraries.find(host, "jemalloc", "aarch64") == "/usr/local/lib/libjemalloc.so.2"
    assert _libraries.find(host, "jemalloc", "x86_64") == JEMALLOC


def test_f26_a_link_that_leads_nowhere_is_no_library(tmp_path: Path) -> None:
    host = tree(tmp_path, {"/usr/lib64/x": ""})
    (tmp_path / "usr/lib64/libjemalloc.so.2").symlink_to("libjemalloc.so.2.9")
    with pytest.raises(TuningError):
        _libraries.find(host, "jemalloc", "x86_64")
    (tmp_path / "usr/lib64/libjemalloc.so.2.9").write_bytes(elf(62))
    assert _libraries.find(host, "jemalloc", "x86_64") == JEMALLOC


# -- what is preloaded -----------------------------------------------------------------------------------------------


def test_f26_a_preload_whose_file_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", MISSING)
    host = tree(
        tmp_path,
        {
            "/etc/ld.so.preload": f"# ours\n{JEMALLOC}:/lib/gone.so # old\n",
            "/etc/environment": f'export LD_PRELOAD="libsnoopy.so {JEMALLOC}"\nOTHER=1\n',
            "/etc/profile.d/x.sh": "if true; then\n  export LD_PRELOAD='/usr/$LIB/libx.so'\nfi\n",
            JEMALLOC: "",
        },
    )
    rows = _environment.preloads(host, _environment.everywhere(scene(host)))
    assert [(row["path"], row["source"], row["exists"]) for row in rows] == [
        (MISSING, "caller", False),
        ("libsnoopy.so", "/etc/environment", False),
        (JEMALLOC, "/etc/environment", True),
        ("/usr/$LIB/libx.so", "/etc/profile.d/x.sh", None),
        (JEMALLOC, "/etc/ld.so.preload", True),
        ("/lib/gone.so", "/etc/ld.so.preload", False),
    ]
    assert all((row["reason"] is None) == (row["exists"] is True) for row in rows)


def test_f26_a_missing_preload_changes_no_other_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    without = _malloc.glibc(scene(Host()))
    monkeypatch.setenv("LD_PRELOAD", MISSING)
    with_it = _malloc.gather(scene(Host()))
    assert with_it["glibc"] == without
    assert MISSING in [row["path"] for row in with_it["preloads"] if row["exists"] is False]


def test_the_variables_of_the_jobs_come_first_and_each_has_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "0")
    monkeypatch.setenv("MALLOC_CONF", "dirty_decay_ms:0")
    host = tree(tmp_path, {"/etc/environment": "MALLOC_ARENA_MAX=4\nSECRET=x\n"})
    variables = _environment.everywhere(scene(host, environment={"MALLOC_ARENA_MAX": "2"}))
    arenas = [(one.value, one.source) for one in variables if one.name == "MALLOC_ARENA_MAX"]
    assert arenas == [("2", "option environment"), ("4", "/etc/environment")]
    readers = {one.name: one.read_by for one in variables}
    assert (readers["MALLOC_ARENA_MAX"], readers["MALLOC_CONF"]) == ("glibc", "jemalloc")
    assert readers["MIMALLOC_PURGE_DELAY"] == "mimalloc" and "SECRET" not in readers
    chosen = _environment.value_in_force(variables, "MALLOC_ARENA_MAX")
    assert chosen is not None and chosen.value == "2"


def test_a_tunable_that_this_c_library_passes_over_is_told() -> None:
    variable = _environment.Variable("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1:glibc.malloc.check=3", "caller", "glibc")
    accepted = ["glibc.malloc.check", "glibc.malloc.arena_max"]
    assert _malloc.unknown([variable], accepted) == [{"name": "glibc.malloc.hugetlb", "source": "caller"}]
    assert _malloc.unknown([variable], None) == []


def test_tunables_are_read_from_the_loaders_list() -> None:
    listing = "glibc.rtld.nns: 0x4 (min: 0x1, max: 0x10)\nglibc.malloc.check: 0 (min: 0, max: 3)\nglibc.cpu.x86_ibt:\n"
    assert _malloc.tunables(listing) == ["glibc.cpu.x86_ibt", "glibc.malloc.check", "glibc.rtld.nns"]


def test_an_older_c_library_has_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda _name: "glibc 2.28")
    facts = _malloc.glibc(scene(Host()))
    assert "glibc.malloc.arena_max" in facts["tunables"]
    assert not {"glibc.malloc.hugetlb", "glibc.malloc.mxfast"} & set(facts["tunables"])
    assert facts["tunables_source"].startswith("table for glibc 2.28")


def test_another_c_library_is_null_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda _name: None)
    facts = _malloc.glibc(scene(Host()))
    assert (facts["version"], facts["tunables"]) == (None, None)
    assert facts["reasons"]["version"] == "the C library here is not glibc"


# -- what is in force ------------------------------------------------------------------------------------------------

OTHERS = ["/usr/bin/python3.11", "/usr/lib64/libm.so.6"]


@pytest.mark.parametrize(
    ("mapped", "preloads", "needed", "name"),
    [
        ([LIBC], [], [], "glibc"),
        (["/lib64/libc-2.28.so"], None, None, "glibc"),
        (["/lib/ld-musl-x86_64.so.1"], [], [], "musl"),
        ([], [], [], None),
        ([JEMALLOC, LIBC], [JEMALLOC], [], "jemalloc"),
        ([JEMALLOC, LIBC], ["libjemalloc.so.2"], ["libc.so.6"], "jemalloc"),
        (["/usr/lib64/libmimalloc.so.2.1", LIBC], ["/usr/lib64/libmimalloc.so.2"], [], "mimalloc"),
        (["/usr/lib64/libtcmalloc_minimal.so.4.5.9", LIBC], ["/usr/lib64/libtcmalloc_minimal.so.4"], [], "tcmalloc"),
        # named by the program: before the C library it wins, behind it does not
        ([JEMALLOC, LIBC], [], ["libm.so.6", "libjemalloc.so.2", "libc.so.6"], "jemalloc"),
        ([JEMALLOC, LIBC], [], ["libc.so.6", "libjemalloc.so.2"], "glibc"),
        # opened later, or a preload of something else
        ([LIBC, JEMALLOC], [], ["libc.so.6"], "glibc"),
        ([LIBC, JEMALLOC], ["/usr/lib64/libsnoopy.so"], ["libc.so.6"], "glibc"),
        # the preload was asked for, but its file is not mapped
        ([LIBC], [MISSING], ["libc.so.6"], "glibc"),
        # not known
        ([JEMALLOC, LIBC], None, ["libc.so.6"], None),
        ([JEMALLOC, LIBC], [], None, None),
        # known by what is known
        ([JEMALLOC, LIBC], [JEMALLOC], None, "jemalloc"),
        (["/opt/x/libjemalloc_pic.so", LIBC], [], ["libc.so.6"], "glibc"),
        (["/opt/notjemalloc.so.2", LIBC], None, None, "glibc"),
    ],
)
def test_the_malloc_in_force(
    mapped: list[str], preloads: list[str] | None, needed: list[str] | None, name: str | None
) -> None:
    verdict = _maps.judge([*OTHERS, *mapped], preloads, needed)
    assert verdict.name == name
    assert verdict.how and (verdict.name is None) == (verdict.library is None)


def test_maps_are_read_with_deleted_files_and_blanks() -> None:
    text = (
        "7f00-7f10 r--p 00000000 fe:00 12  /usr/lib64/libc.so.6\n"
        "7f10-7f20 r-xp 00000000 fe:00 12  /usr/lib64/libc.so.6\n"
        "7f20-7f30 rw-p 00000000 00:00 0\n"
        "7f30-7f40 rw-p 00000000 00:00 0   [heap]\n"
        "7f40-7f50 r--p 00000000 fe:00 13  /opt/my libs/libjemalloc.so.2 (deleted)\n"
    )
    assert _maps.files(text) == ["/usr/lib64/libc.so.6", "/opt/my libs/libjemalloc.so.2"]


def test_the_libraries_that_a_program_names() -> None:
    program = shutil.which("ls") or ""
    assert "libc.so.6" in (_elf.needed(os.path.realpath(program)) or [])


@pytest.mark.parametrize(
    "content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(60), b"\x7fELF\x02\x01" + bytes(58)]
)
def test_what_is_no_such_program_names_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert not _elf.needed(str(tmp_path / "x"))
    assert _elf.needed(str(tmp_path / "gone")) is None


@pytest.fixture(name="library")
def _library(tmp_path: Path) -> str:
    """Give a library that does no harm the name of jemalloc: the loader maps it, which is all that is looked at."""
    mapped = _maps.files(Path("/proc/self/maps").read_text(encoding="utf-8"))
    harmless = next(path for path in mapped if os.path.basename(path).startswith("libm.so"))
    return shutil.copy(harmless, tmp_path / "libjemalloc.so.2").as_posix()


@pytest.mark.parametrize("preload", [True, False])
def test_a_running_process_tells_by_its_maps_not_by_its_variable(library: str, preload: bool) -> None:
    environment = {**os.environ, "LD_PRELOAD": library if preload else MISSING, "MALLOC_ARENA_MAX": "2"}
    program = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, env=environment) as child:
        assert child.stdout is not None and child.stdout.readline()
        row = _malloc.processes(scene(Host(), processes=(str(child.pid),)))[0]
        child.communicate(b"")
    assert row["malloc"] == ("jemalloc" if preload else "glibc")
    assert (row["library"] == library) is preload
    assert {"MALLOC_ARENA_MAX", "LD_PRELOAD"} == {one["name"] for one in row["variables"]} - {"GLIBC_TUNABLES"}


def test_a_process_that_is_closed_to_us_says_so(tmp_path: Path) -> None:
    host = tree(tmp_path, {"/proc/7/comm": "python3\n", "/proc/8/comm": "other\n"})
    row = _malloc.processes(scene(host, processes=("python3",)))[0]
    assert (row["pid"], row["malloc"], row["reason"]) == (7, None, "/proc/7/maps: is missing")


def test_processes_are_found_by_number_and_name(tmp_path: Path) -> None:
    names = {f"/proc/{number}/comm": "python3\n" for number in range(100, 112)}
    host = tree(tmp_path, {**names, "/proc/5/comm": "a-name-of-more-\n"})
    assert [one.pid for one in _processes.find(host, ["python3"])] == list(range(100, 108))
    assert [one.pid for one in _processes.find(host, ["a-name-of-more-than-15"])] == [5]
    assert _processes.find(host, ["99"])[0].reason == "99: there is no such process"

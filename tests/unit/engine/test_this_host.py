# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a value means on one host and not on another: CPUs and nodes, the size of a page, libraries, shared memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

from ..machine import THP, Box, build, inform, picture, thp, tune
from ..manager import Manager

GROUP = "/sys/fs/cgroup/gpu.slice"
MACHINE = {
    "/sys/devices/system/cpu/possible": "0-7\n",
    "/sys/devices/system/cpu/online": "0-5\n",
    "/sys/devices/system/node/possible": "0-3\n",
    "/sys/devices/system/node/has_memory": "0-1\n",
    f"{GROUP}/cpuset.cpus": "\n",
    f"{GROUP}/cpuset.mems": "\n",
}
DEFAULTS = "/etc/gpu-fleet/gpu-run.json"
JEMALLOC = "/usr/lib64/libjemalloc.so.2"


def jobs(**properties: str) -> dict[str, Any]:
    return {
        "name": "jobs",
        "units": [{"unit": "gpu.slice", "property": name, "value": value} for name, value in properties.items()],
    }


def launcher(content: str, *libraries: str) -> dict[str, Any]:
    return {"name": "tools", "files": [{"path": DEFAULTS, "content": content, "libraries": list(libraries)}]}


def refused(host: Box, wanted: dict[str, Any]) -> str:
    """Return the sentence of a refusal that came before the first write, from a preview, a run and an audit."""
    first = picture(host)
    said = set()
    for check in (True, False):
        with pytest.raises(TuningError) as caught:
            tune(host, wanted, check=check)
        said.add(str(caught.value))
    with pytest.raises(TuningError) as caught:
        inform(host, wanted)
    assert picture(host) == first and said == {str(caught.value)}
    return said.pop()


@pytest.fixture
def host(tmp_path: Path) -> Box:
    """A machine whose gpu.slice has processes in it."""
    box = build(tmp_path, MACHINE)
    runner = box.commands._runner
    assert isinstance(runner, Manager)
    runner.groups["gpu.slice"] = "/gpu.slice"
    return box


# -- CPUs and memory nodes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AllowedCPUs", "0-8", "names CPU 8, which this host does not have; expected some of 0-5"),
        ("AllowedCPUs", "6-7", "names CPU 6-7, which"),  # possible, and off
        ("AllowedMemoryNodes", "0,4", "names node 4, which this host does not have; expected some of 0-1"),
        ("AllowedMemoryNodes", "2-3", "names node 2-3, which"),  # nodes without memory
    ],
)
def test_a_list_that_the_kernel_would_not_take_is_refused(host: Box, name: str, value: str, said: str) -> None:
    assert said in refused(host, jobs(**{name: value}))


@pytest.mark.parametrize(
    ("name", "value", "file"),
    [
        ("AllowedCPUs", "3,0-1", "cpuset.cpus"),
        ("AllowedCPUs", "4-7", "cpuset.cpus"),
        ("AllowedCPUs", "0-7", "cpuset.cpus"),
        ("AllowedMemoryNodes", "0-1", "cpuset.mems"),
        ("AllowedMemoryNodes", "1-3", "cpuset.mems"),
    ],
)
def test_a_list_reaches_the_kernel_and_is_lifted_again(host: Box, name: str, value: str, file: str) -> None:
    place = Path(host.root + f"{GROUP}/{file}")
    assert tune(host, jobs(**{name: value}))["changed"] and place.read_text().strip()
    assert inform(host, jobs(**{name: value}))["in_sync"] and not tune(host, jobs(**{name: value}))["changed"]
    # The kernel keeps its list where it is given an empty one, so it is first given everything.
    assert tune(host, {"name": "jobs"}, state="absent")["changed"]
    assert place.read_text().strip() == {"cpuset.cpus": "0-5", "cpuset.mems": "0-1"}[file]
    assert not tune(host, {"name": "jobs"}, state="absent")["changed"]


def test_a_list_that_somebody_changed_in_the_kernel_alone_is_drift(host: Box) -> None:
    tune(host, jobs(AllowedCPUs="0-1"))
    Path(host.root + f"{GROUP}/cpuset.cpus").write_text("4\n")
    audit = inform(host, jobs(AllowedCPUs="0-1"))
    assert [(row["view"], row["actual"]) for row in audit["drift"]] == [("live", "4")]
    assert tune(host, jobs(AllowedCPUs="0-1"))["changed"] and inform(host, jobs(AllowedCPUs="0-1"))["in_sync"]


def test_a_list_that_the_kernel_passes_over_is_undone(host: Box) -> None:
    real = host.commands._runner
    assert isinstance(real, Manager)
    del real.groups["gpu.slice"]  # the manager takes the list, and the kernel hears nothing of it
    show = real.show
    real.show = lambda unit: show(unit).replace("ControlGroup=\n", "ControlGroup=/gpu.slice\n")  # type: ignore[method-assign]
    Path(host.root + f"{GROUP}/cpuset.cpus").write_text("0-5\n")
    with pytest.raises(TuningError, match="AllowedCPUs: was given 0-1, but the host now says 0-5"):
        tune(host, jobs(AllowedCPUs="0-1"))


# -- the size of a page ----------------------------------------------------------------------------------------------


def test_huge_pages_of_half_a_gigabyte_are_warned_about(tmp_path: Path) -> None:
    host = build(tmp_path, {f"{THP}/hpage_pmd_size": f"{2**29}\n"})
    host.page = 65536
    (said,) = tune(host, thp(enabled="always"), check=True)["warned"]
    assert "512 MiB on this kernel (pages of 64 KiB)" in said and inform(host, thp(enabled="always"))["warned"] == [
        said
    ]
    assert tune(host, thp(enabled="madvise"))["warned"] == []
    (tmp_path / f"{THP[1:]}/hpage_pmd_size").write_text(f"{2**21}\n")
    assert tune(host, thp(enabled="always"), check=True)["warned"] == []


@pytest.mark.parametrize(("page", "huge", "most"), [(4096, 2**21, 511), (65536, 2**29, 8191), (16384, 2**25, 2047)])
def test_a_count_of_pages_is_bounded_by_those_of_a_huge_one(tmp_path: Path, page: int, huge: int, most: int) -> None:
    host = build(tmp_path, {f"{THP}/hpage_pmd_size": f"{huge}\n"})
    host.page = page
    wanted = thp(**{"khugepaged/max_ptes_none": str(most + 1)})
    assert f"expected 0 to {most}: its huge page" in refused(host, wanted)
    tune(host, thp(**{"khugepaged/max_ptes_none": str(most)}))
    assert host.read(f"{THP}/khugepaged/max_ptes_none") == f"{most}\n"


# -- libraries (F26) -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [JEMALLOC, f"/usr/lib/{os.uname().machine}-linux-gnu/libjemalloc.so.2"])
def test_f26_the_path_that_is_found_is_the_one_written(tmp_path: Path, path: str) -> None:
    host = build(tmp_path, {path: ""})
    first = picture(host)
    wanted = launcher('{"LD_PRELOAD": "@jemalloc@ @libjemalloc.so.2@ @other@"}\n', "jemalloc", "libjemalloc.so.2")
    assert tune(host, wanted)["changed"] and not tune(host, wanted)["changed"] and inform(host, wanted)["in_sync"]
    assert host.read(DEFAULTS) == f'{{"LD_PRELOAD": "{path} {path} @other@"}}\n'
    tune(host, {"name": "tools"}, state="absent")
    assert picture(host) == first


@pytest.mark.parametrize(
    ("word", "tree", "said"),
    [
        ("jemalloc", {"/etc/os-release": "ID=debian\n"}, "install the package libjemalloc2"),
        ("jemalloc", {"/etc/os-release": 'ID="rocky"\nID_LIKE="rhel"\n'}, "install the package jemalloc (from EPEL)"),
        ("/usr/lib/x/libtcmalloc.so.4", {"/etc/os-release": "ID=debian\n"}, "install the package libtcmalloc-minimal4"),
        ("/usr/lib/x/libjemalloc.so.2", {JEMALLOC: ""}, f"it is {JEMALLOC} here, which the name jemalloc stands for"),
        ("/opt/site/libours.so", {}, "is not on this host, so the loader would complain for every program; give the"),
        ("libours.so", {}, "is in no usual folder"),
        ("lib/libours.so", {"/lib/libours.so": ""}, "is not on this host"),
        ("/usr/lib", {"/usr/lib/x": ""}, "is not on this host"),
        ("/opt/site/libours.so", {"/opt/site/libours.so": "\x7fELF" + "\1" * 16}, "is not for "),
    ],
)
def test_f26_a_library_that_is_not_there_is_refused(tmp_path: Path, word: str, tree: dict[str, str], said: str) -> None:
    sentence = refused(build(tmp_path, tree), launcher("{}", word))
    assert sentence.startswith(f"{DEFAULTS}: {word}: ") and said in sentence


@pytest.mark.parametrize("word", ["/opt/$LIB/libours.so", "${ORIGIN}/libours.so", "/opt/libours.so"])
def test_f26_what_is_there_or_only_the_loader_can_find_is_taken(tmp_path: Path, word: str) -> None:
    host = build(tmp_path, {"/opt/libours.so": ""})
    tune(host, launcher(f"@{word}@", word))
    assert host.read(DEFAULTS) == word


@pytest.mark.parametrize(("number", "folder"), [(62, "x86_64-linux-gnu"), (183, "aarch64-linux-gnu")])
def test_f26_an_image_has_the_libraries_of_its_own_processor(tmp_path: Path, number: int, folder: str) -> None:
    tree = {f"/usr/lib/{name}-linux-gnu/libjemalloc.so.2": "" for name in ("x86_64", "aarch64")}
    build(tmp_path, {**tree, "/usr/bin/env": ""})
    (tmp_path / "usr/bin/env").write_bytes(b"\x7fELF\x02\x01" + bytes(12) + bytes((number, 0)))
    image = Box(str(tmp_path), live=False)
    tune(image, launcher("@jemalloc@", "jemalloc"))
    assert image.read(DEFAULTS) == f"/usr/lib/{folder}/libjemalloc.so.2"


# -- what a limit does not see ---------------------------------------------------------------------------------------


def test_a_caveat_is_a_warning_and_changes_nothing(tmp_path: Path) -> None:
    plain, warned = jobs(MemoryMax="4G"), jobs(MemoryMax="4G")
    warned["units"][0]["caveat"] = "the GPU shares the host's memory"
    hosts = [build(tmp_path / name) for name in ("plain", "warned")]
    results = [tune(host, wanted) for host, wanted in zip(hosts, (plain, warned))]
    assert picture(hosts[0]) == picture(hosts[1])
    assert [one["warned"] for one in results] == [[], ["gpu.slice MemoryMax: the GPU shares the host's memory"]]
    assert inform(hosts[1], warned)["in_sync"]

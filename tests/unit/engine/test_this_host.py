# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a value means on one host and not on another: CPUs and nodes, the size of a page, libraries, shared memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils import _libraries
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

from ..machine import THP, Box, build, inform, picture, sysctl, thp, tune
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
NUMBERS = {"x86_64": 62, "aarch64": 183, "ppc64le": 21}


def jobs(**properties: str) -> dict[str, Any]:
    return {
        "name": "jobs",
        "units": [{"unit": "gpu.slice", "property": name, "value": value} for name, value in properties.items()],
    }


def library(root: Path, path: str, machine: str = "") -> None:
    """Put the head of a library there; by default one for the processor that runs this."""
    place = root / path[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    number = NUMBERS[machine or os.uname().machine]
    place.write_bytes(b"\x7fELF\x02\x01" + bytes(12) + bytes((number, 0)))


def launcher(content: str, *libraries: str) -> dict[str, Any]:
    return {"name": "tools", "files": [{"path": DEFAULTS, "content": content, "libraries": list(libraries)}]}


def refused(host: Box, wanted: dict[str, Any]) -> str:
    """Return the sentence of a refusal that came before the first write; an audit has it as one difference of all."""
    first = picture(host)
    said = set()
    for check in (True, False):
        with pytest.raises(TuningError) as caught:
            tune(host, wanted, check=check)
        said.add(str(caught.value))
    audit = inform(host, wanted, sysctl("beside", vm__swappiness="10"))
    assert {row["by"] for row in audit["drift"] if row["view"] == "host"} == said and not audit["in_sync"]
    assert "vm.swappiness" in {row["key"] for row in audit["drift"]}, "it hides no other difference"
    assert picture(host) == first
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
    assert place.read_text().strip() == {"cpuset.cpus": "0-7", "cpuset.mems": "0-3"}[file], "what comes later too"
    assert not tune(host, {"name": "jobs"}, state="absent")["changed"]


@pytest.mark.parametrize("force", [False, True])
def test_an_original_that_the_kernel_never_took_comes_back(host: Box, force: bool) -> None:
    unit = Path(host.root) / "etc/systemd/system/gpu.slice"
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text("[Slice]\nAllowedCPUs=0-63\n")
    tune(host, jobs(AllowedCPUs="0-1"))
    tune(host, {"name": "jobs"}, state="absent", force=force)
    runner = host.commands._runner
    assert isinstance(runner, Manager) and "AllowedCPUs=0-63\n" in runner.show("gpu.slice")
    assert host.read(f"{GROUP}/cpuset.cpus") == "0-7\n" and host.mode("/var/lib/gpu-fleet") is None


def test_a_kernel_without_numa_has_one_node(tmp_path: Path) -> None:
    tree = {path: text for path, text in MACHINE.items() if "/node/" not in path}
    host = build(tmp_path, {**tree, "/run/systemd/groups.json": '{"gpu.slice": "/gpu.slice"}'})
    assert "names node 1" in refused(host, jobs(AllowedMemoryNodes="1"))
    tune(host, jobs(AllowedMemoryNodes="0"))
    tune(host, {"name": "jobs"}, state="absent")
    assert not tune(host, {"name": "jobs"}, state="absent")["changed"]


def test_a_list_whose_cpus_went_away_is_a_difference(host: Box) -> None:
    tune(host, jobs(AllowedCPUs="4-5", MemoryMax="4G"))
    Path(host.root + "/sys/devices/system/cpu/online").write_text("0-3\n")
    audit = inform(host, jobs(AllowedCPUs="4-5", MemoryMax="4G"))
    assert [(row["view"], row["key"]) for row in audit["drift"]] == [("host", "gpu.slice AllowedCPUs")]
    assert tune(host, {"name": "jobs"}, state="absent")["changed"]


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
    host = build(tmp_path)
    library(tmp_path, path)
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
        ("/opt/site/libours.so", {}, "is not on this host, so the loader would complain for every program; give the"),
        ("libours.so", {}, "is in no usual folder"),
        ("lib/libours.so", {"/lib/libours.so": ""}, "is not on this host"),
        ("/usr/lib", {"/usr/lib/x": ""}, "is not on this host"),
        ("/opt/site/libours.so", {"/opt/site/libours.so": "GROUP ( /lib64/libx.so.1 )\n"}, "is no library"),
        ("/opt/site/libours.so", {"/opt/site/libours.so": ""}, "is no library"),
    ],
)
def test_f26_a_library_that_is_not_there_is_refused(tmp_path: Path, word: str, tree: dict[str, str], said: str) -> None:
    sentence = refused(build(tmp_path, tree), launcher("{}", word))
    assert sentence.startswith(f"{DEFAULTS}: {word}: ") and said in sentence


def test_f26_a_path_of_another_distribution_names_the_one_of_this(tmp_path: Path) -> None:
    host = build(tmp_path)
    library(tmp_path, JEMALLOC)
    said = refused(host, launcher("{}", "/usr/lib/x/libjemalloc.so.2"))
    assert f"it is {JEMALLOC} here, which the name jemalloc stands for" in said


@pytest.mark.parametrize(("mode", "above"), [(0o600, 0o755), (0o644, 0o700)])
def test_f26_a_library_that_jobs_cannot_read_is_refused(tmp_path: Path, mode: int, above: int) -> None:
    host = build(tmp_path)
    library(tmp_path, "/opt/site/libours.so")
    (tmp_path / "opt/site/libours.so").chmod(mode)
    (tmp_path / "opt/site").chmod(above)
    assert "is not for everybody to read" in refused(host, launcher("{}", "/opt/site/libours.so"))


def test_f26_a_library_of_another_processor_is_refused(tmp_path: Path) -> None:
    host = build(tmp_path)
    library(tmp_path, "/opt/libours.so", "ppc64le")
    assert "is not for" in refused(host, launcher("{}", "/opt/libours.so"))


@pytest.mark.parametrize("word", ["/opt/$LIB/libours.so", "${ORIGIN}/libours.so", "/opt/libours.so"])
def test_f26_what_is_there_or_only_the_loader_can_find_is_taken(tmp_path: Path, word: str) -> None:
    host = build(tmp_path)
    library(tmp_path, "/opt/libours.so")
    tune(host, launcher(f"@{word}@", word))
    assert host.read(DEFAULTS) == word


def test_f26_a_library_behind_links_to_folders_is_there(tmp_path: Path) -> None:
    """A link's `..` starts where the folder really is: current leads to releases/3, and from there to shared."""
    library(tmp_path, "/opt/shared/libours.so")
    (tmp_path / "opt/releases/3/lib").mkdir(parents=True)
    (tmp_path / "opt/current").symlink_to("releases/3")
    (tmp_path / "opt/releases/3/lib/libours.so").symlink_to("../../../shared/libours.so")
    host = build(tmp_path)
    tune(host, launcher("@/opt/current/lib/libours.so@", "/opt/current/lib/libours.so"))
    assert host.read(DEFAULTS) == "/opt/current/lib/libours.so"
    assert _libraries.exists(Host("/"), f"{tmp_path}/opt/current/lib/libours.so")


@pytest.mark.parametrize(
    ("machine", "folder"),
    [("x86_64", "x86_64-linux-gnu"), ("aarch64", "aarch64-linux-gnu"), ("ppc64le", "powerpc64le-linux-gnu")],
)
def test_f26_an_image_has_the_libraries_of_its_own_processor(tmp_path: Path, machine: str, folder: str) -> None:
    for name, other in (("x86_64", "x86_64"), ("aarch64", "aarch64"), ("ppc64le", "powerpc64le")):
        library(tmp_path, f"/usr/lib/{other}-linux-gnu/libjemalloc.so.2", name)
    build(tmp_path)
    library(tmp_path, "/usr/bin/env", machine)
    image = Box(str(tmp_path), live=False)
    tune(image, launcher("@jemalloc@", "jemalloc"))
    assert image.read(DEFAULTS) == f"/usr/lib/{folder}/libjemalloc.so.2"


def test_f26_an_image_s_links_lead_nowhere_else(tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/env").symlink_to("/bin/bash")  # there is one here, and none in the image
    (tmp_path / "usr/lib64").symlink_to("lib64")
    library(tmp_path, "/usr/lib/systemd/systemd", "aarch64")
    image = Box(str(tmp_path), live=False)
    assert _libraries.processor(image) == "aarch64"
    with pytest.raises(TuningError, match="no library of this name is installed for aarch64"):
        tune(image, launcher("@jemalloc@", "jemalloc"))


@pytest.mark.parametrize("word", ["/a/b\0c", "/a\nb", ""])
def test_f26_what_cannot_be_a_library_s_name_is_refused(tmp_path: Path, word: str) -> None:
    with pytest.raises(TuningError, match="is not the name or path of one"):
        tune(build(tmp_path), launcher("{}", word))


# -- what a limit does not see ---------------------------------------------------------------------------------------


def test_a_caveat_is_a_warning_and_changes_nothing(tmp_path: Path) -> None:
    plain, warned = jobs(MemoryMax="4G"), jobs(MemoryMax="4G")
    warned["units"][0]["caveat"] = "the GPU shares the host's memory"
    hosts = [build(tmp_path / name) for name in ("plain", "warned")]
    results = [tune(host, wanted) for host, wanted in zip(hosts, (plain, warned))]
    assert picture(hosts[0]) == picture(hosts[1])
    assert [one["warned"] for one in results] == [[], ["gpu.slice MemoryMax: the GPU shares the host's memory"]]
    assert inform(hosts[1], warned)["in_sync"]
    for word in ("max", "unlimited", "infinity"):
        warned["units"][0]["value"] = word
        assert tune(hosts[1], warned)["warned"] == [], "where there is no limit it has nothing to leave out"

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel does with memory: huge pages in all switches (F06, F07), fragmentation, /dev/shm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _huge_pages, _kernel
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Options, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "allocator_thp.yml").read_text(encoding="utf-8"))
THP = "sys/kernel/mm/transparent_hugepage"


def plant(root: Path, files: dict[str, str]) -> Scene:
    """Make a tree with these files and return it as a source sees it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n", encoding="utf-8")
    return Scene(Host(str(root)), Options(), time.monotonic() + 5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_huge_pages(tmp_path: Path, case: dict[str, Any]) -> None:
    files = {f"{THP}/{name}": content for name, content in case["files"].items()}
    facts = _huge_pages.gather(plant(tmp_path, {**files, "proc/mounts": case.get("mounts", "")}))
    assert {name: facts[name] for name in case["facts"]} == case["facts"]
    nulls = {name for name, value in facts.items() if value is None}
    assert nulls == set(facts["reasons"])


def test_f07_a_kernel_without_huge_pages(tmp_path: Path) -> None:
    facts = _huge_pages.gather(plant(tmp_path, {"proc/cmdline": "ro transparent_hugepage=never quiet"}))
    assert (facts["available"], facts["enabled"], facts["fully_off"]) == (False, None, True)
    assert facts["reasons"]["enabled"] == "this kernel has no transparent huge pages"
    assert facts["boot"] == ["transparent_hugepage=never"]


def test_sizes_come_in_order_with_their_switches(tmp_path: Path) -> None:
    scene = plant(
        tmp_path,
        {
            f"{THP}/enabled": "always [madvise] never",
            f"{THP}/hugepages-2048kB/enabled": "always [inherit] madvise never",
            f"{THP}/hugepages-64kB/enabled": "always inherit madvise [never]",
        },
    )
    sizes = _huge_pages.gather(scene)["sizes"]
    assert [(size["bytes"], size["enabled"]) for size in sizes] == [(65536, "never"), (2097152, "inherit")]
    assert all(size["shmem_enabled"] is None and "is missing" in size["reasons"]["shmem_enabled"] for size in sizes)


def test_memory_is_in_bytes_and_an_unknown_row_is_null(tmp_path: Path) -> None:
    text = "MemTotal:       1000 kB\nMemFree: 10 kB\nSwapTotal:             0 kB\nHugePages_Total:     3"
    facts = _kernel.memory(plant(tmp_path, {"proc/meminfo": text}).host)
    assert (facts["total"], facts["free"], facts["swap_total"]) == (1024000, 10240, 0)
    assert facts["available"] is None
    assert facts["reasons"]["available"] == "/proc/meminfo: this kernel has no MemAvailable"


def test_without_meminfo_every_figure_is_null_with_the_reason(tmp_path: Path) -> None:
    facts = _kernel.memory(Host(str(tmp_path)))
    assert {facts[name] for name in _kernel.MEMINFO} == {None}
    assert set(facts["reasons"].values()) == {"/proc/meminfo: is missing"}


BUDDY = """Node 0, zone      DMA      1      1      0      0      0      0      0      0      1      1      3
Node 1, zone   Normal  65536  0  0  0  0  0  0  0  0  0  0"""


def test_free_memory_is_told_by_the_size_of_its_pieces(tmp_path: Path) -> None:
    zones = _kernel.buddy(BUDDY, 4096, 2 << 20)
    assert [(zone["node"], zone["zone"]) for zone in zones] == [(0, "DMA"), (1, "Normal")]
    assert zones[0]["free"] == 4096 * (1 + 2 + 256 + 512 + 3 * 1024)
    assert zones[0]["free_in_huge_pages"] == 4096 * (512 + 3 * 1024)
    assert (zones[1]["free"], zones[1]["free_in_huge_pages"]) == (65536 * 4096, 0)


def test_with_large_pages_another_order_is_a_huge_page() -> None:
    zone = _kernel.buddy("Node 0, zone Normal 1 1 1 1 1 1 1 1 1 1 1 1 1 2", 65536, 512 << 20)[0]
    assert zone["free_in_huge_pages"] == 2 * (512 << 20)


def test_without_huge_pages_their_share_is_null_not_zero() -> None:
    assert _kernel.buddy(BUDDY, 4096, None)[0]["free_in_huge_pages"] is None


def test_counters_and_the_share_of_failures(tmp_path: Path) -> None:
    text = "nr_free_pages 5\ncompact_stall 7\nthp_fault_alloc 300\nthp_fault_fallback 100"
    facts = _kernel.counters(plant(tmp_path, {"proc/vmstat": text}).host)
    assert (facts["compact_stall"], facts["fallback_share"]) == (7, 0.25)
    assert facts["oom_kill"] is None
    assert "this kernel has no oom_kill" in facts["reasons"]["oom_kill"]


def test_no_fault_yet_is_no_share(tmp_path: Path) -> None:
    facts = _kernel.counters(plant(tmp_path, {"proc/vmstat": "thp_fault_alloc 0\nthp_fault_fallback 0"}).host)
    assert facts["fallback_share"] is None
    assert facts["thp_fault_alloc"] == 0


def test_overcommit_in_words(tmp_path: Path) -> None:
    facts = _kernel.overcommit(plant(tmp_path, {"proc/sys/vm/overcommit_memory": "2"}).host)
    assert (facts["mode"], facts["name"], facts["swappiness"]) == (2, "never", None)
    assert facts["reasons"]["swappiness"] == "/proc/sys/vm/swappiness: is missing"


def test_shm_that_is_not_there_is_null(tmp_path: Path) -> None:
    facts = _kernel.shm(Host(str(tmp_path)))
    assert facts["size"] is None
    assert facts["reasons"]["size"] == "/dev/shm: cannot be asked (No such file or directory)"


def test_shm_of_this_machine_equals_what_the_system_says(tmp_path: Path) -> None:
    (tmp_path / "dev" / "shm").mkdir(parents=True)
    scene = plant(tmp_path, {"proc/mounts": "tmpfs /dev/shm tmpfs rw,size=64k 0 0"})
    facts = _kernel.shm(scene.host)
    assert facts["size"] > 0 and facts["used"] + facts["free"] <= facts["size"]
    assert (facts["type"], facts["options"]) == ("tmpfs", "rw,size=64k")

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the kernel hands out memory: RAM, overcommit, huge pages, fragmentation and /dev/shm."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._figures import Missing, group, number, text
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

MEMINFO = {
    "total": "MemTotal",
    "free": "MemFree",
    "available": "MemAvailable",
    "swap_total": "SwapTotal",
    "swap_free": "SwapFree",
    "shared": "Shmem",
    "committed": "Committed_AS",
    "commit_limit": "CommitLimit",
    "anonymous_huge": "AnonHugePages",
    "shared_huge": "ShmemHugePages",
    "reserved_huge": "Hugetlb",
}
COUNTERS = (
    "compact_stall",
    "compact_fail",
    "compact_success",
    "compact_daemon_wake",
    "thp_fault_alloc",
    "thp_fault_fallback",
    "thp_collapse_alloc",
    "thp_collapse_alloc_failed",
    "thp_split_page",
    "thp_file_alloc",
    "oom_kill",
)
OVERCOMMIT = {0: "heuristic", 1: "always", 2: "never"}
ZONE = re.compile(r"Node\s+(\d+),\s+zone\s+(\S+)\s+(.*)")
SHM = "/dev/shm"
PROC_VM = "/proc/sys/vm"


def gather(scene: Scene) -> dict[str, Any]:
    """Return the kernel's part of the facts."""
    host = scene.host
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        "memory": memory(host),
        "page_size": group("sysconf(SC_PAGE_SIZE)", {"bytes": page}),
        "overcommit": overcommit(host),
        "fragmentation": fragmentation(host, page),
        "shm": shm(host),
    }


def memory(host: Host) -> dict[str, Any]:
    """Return what /proc/meminfo says, in bytes."""
    path = "/proc/meminfo"
    content = text(host, path)
    if isinstance(content, Missing):
        return group(path, dict.fromkeys(MEMINFO, content))
    rows = {line.partition(":")[0]: line.partition(":")[2].split() for line in content.splitlines()}
    return group(path, {name: _bytes(rows, key) for name, key in MEMINFO.items()})


def _bytes(rows: Mapping[str, list[str]], key: str) -> int | Missing:
    words = rows.get(key, [])
    if not words or not words[0].isdigit():
        return Missing(f"/proc/meminfo: this kernel has no {key}")
    return int(words[0]) * (1024 if words[1:] == ["kB"] else 1)


def overcommit(host: Host) -> dict[str, Any]:
    """Return what the kernel does when programs ask for more than there is, and how eagerly it swaps."""
    mode = number(host, f"{PROC_VM}/overcommit_memory")
    return group(
        PROC_VM,
        {
            "mode": mode,
            "name": mode if isinstance(mode, Missing) else OVERCOMMIT.get(mode, "unknown"),
            "ratio": number(host, f"{PROC_VM}/overcommit_ratio"),
            "kbytes": number(host, f"{PROC_VM}/overcommit_kbytes"),
            "swappiness": number(host, f"{PROC_VM}/swappiness"),
            "max_map_count": number(host, f"{PROC_VM}/max_map_count"),
            "min_free_kbytes": number(host, f"{PROC_VM}/min_free_kbytes"),
            "zone_reclaim_mode": number(host, f"{PROC_VM}/zone_reclaim_mode"),
        },
    )


def fragmentation(host: Host, page: int) -> dict[str, Any]:
    """Return the free memory by the size of its pieces, and how often a huge page was wanted and not had."""
    huge = _read.number(host, "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
    content = text(host, "/proc/buddyinfo")
    zones = content if isinstance(content, Missing) else buddy(content, page, huge)
    return {
        "free_blocks": group("/proc/buddyinfo", {"huge_page": huge, "zones": zones}),
        "counters": counters(host),
    }


def buddy(content: str, page: int, huge: int | None) -> list[dict[str, Any]]:
    """Read /proc/buddyinfo: for each zone the number of free pieces of 1, 2, 4, ... pages."""
    zones = []
    for found in filter(None, map(ZONE.match, content.splitlines())):
        blocks = [int(word) for word in found[3].split() if word.isdigit()]
        sizes = [(page << order) * count for order, count in enumerate(blocks)]
        large = None if huge is None else sum(size for order, size in enumerate(sizes) if page << order >= huge)
        row = {"node": int(found[1]), "zone": found[2], "blocks": blocks, "free": sum(sizes)}
        zones.append({**row, "free_in_huge_pages": large})
    return zones


def counters(host: Host) -> dict[str, Any]:
    """Return the counters since boot, and the share of faults that wanted a huge page and got small ones."""
    path = "/proc/vmstat"
    content = text(host, path)
    if isinstance(content, Missing):
        return group(path, dict.fromkeys((*COUNTERS, "fallback_share"), content))
    rows = dict(line.split(maxsplit=1) for line in content.splitlines() if " " in line)
    found: dict[str, Any] = {
        name: int(rows[name]) if rows.get(name, "").isdigit() else Missing(f"{path}: this kernel has no {name}")
        for name in COUNTERS
    }
    return group(path, {**found, "fallback_share": _share(found["thp_fault_alloc"], found["thp_fault_fallback"])})


def _share(had: int | Missing, missed: int | Missing) -> float | Missing:
    if isinstance(had, Missing) or isinstance(missed, Missing):
        return Missing("/proc/vmstat: does not count the faults for huge pages")
    return round(missed / (had + missed), 4) if had + missed else Missing("no fault wanted a huge page since boot")


def shm(host: Host) -> dict[str, Any]:
    """Return size and use of /dev/shm, where workers share tensors; its pages count as memory of who wrote them."""
    mounts = [line.split() for line in (_read.text(host, "/proc/mounts") or "").splitlines()]
    ours = [row for row in mounts if len(row) > 3 and row[1] == SHM]
    try:
        status = os.statvfs(host.at(SHM))
    except OSError as error:
        missing = Missing(f"{SHM}: cannot be asked ({error.strerror})")
        return group(SHM, dict.fromkeys(("size", "used", "free", "inodes_free", "type", "options"), missing))
    absent = Missing(f"/proc/mounts: has no file system at {SHM}")
    return group(
        f"statvfs({SHM}), /proc/mounts",
        {
            "size": status.f_frsize * status.f_blocks,
            "used": status.f_frsize * (status.f_blocks - status.f_bfree),
            "free": status.f_frsize * status.f_bavail,
            "inodes_free": status.f_favail,
            "type": ours[-1][2] if ours else absent,
            "options": ours[-1][3] if ours else absent,
        },
    )

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 10: affinity, control group, limits, malloc and allocator of this very process, against what was declared."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from . import _cgroup, _huge_pages, _limits
from ._report import Context, Finding, Measure, Row, judge

MALLOCS = ("jemalloc", "tcmalloc", "mimalloc")
SIZES = {"k": 10, "m": 20, "g": 30, "t": 40}


def check(context: Context) -> Iterator[Finding]:
    """Tell what is in force, then compare it with each declared value."""
    expected = context.options["expect"]
    cpus = len(os.sched_getaffinity(0))
    yield Measure("environment.cpus", cpus, "CPUs")
    yield Row("environment.process", "pass", describe(), threshold_source="as this process has it")
    for name, wanted in sorted((expected.get("limits") or {}).items()):
        yield limit(name, str(wanted))
    for name, wanted in sorted((expected.get("environment") or {}).items()):
        seen = os.environ.get(name)
        yield judge(
            f"environment.{name}",
            seen == str(wanted),
            seen,
            str(wanted),
            threshold_source="declared",
            action="the variable does not reach the jobs: set it where they are started (launcher, service, slurmd)",
        )
    if expected.get("cpus"):
        yield judge(
            "environment.affinity",
            cpus >= expected["cpus"],
            cpus,
            expected["cpus"],
            unit="CPUs",
            threshold_source="declared",
            action="the jobs may use fewer CPUs than declared: look at cpuset and at the launcher",
        )
    if expected.get("memory_max"):
        yield memory(str(expected["memory_max"]))
    if expected.get("thp"):
        seen = "never (cut off by prctl)" if _huge_pages.disabled() else _huge_pages.chosen("enabled")
        yield judge(
            "environment.thp",
            seen == expected["thp"],
            seen,
            expected["thp"],
            threshold_source="declared",
            action="run the tuning again and look for who sets it back (audit-gpu-nodes.yml)",
        )
    yield from gpus(context, expected.get("gpus"))
    yield preload()


def describe() -> dict[str, Any]:
    """Return all that the tuning can reach, as this process has it."""
    groups = {name: _cgroup.levels(name)[:1] for name in ("memory", "pids")}
    variables = (
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "THP_MEM_ALLOC_ENABLE",
        "GLIBC_TUNABLES",
        "MALLOC_ARENA_MAX",
        "LD_PRELOAD",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
    )
    room = _cgroup.headroom()
    return {
        "uid": os.getuid(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "cgroup": {name: levels[0].name for name, levels in groups.items() if levels},
        "memory_headroom": room[0] if room else None,
        "limits": {name: _limits.rlimit(name) for name in _limits.NAMES},
        "shm": _limits.shared_memory(),
        "malloc": malloc(),
        "environment": {name: os.environ[name] for name in variables if name in os.environ},
    }


def malloc() -> str:
    """Return the malloc in force: from the libraries that are mapped, not from a variable."""
    maps = _cgroup.text("/proc/self/maps") or ""
    return next((name for name in MALLOCS if re.search(rf"/lib{name}[^/]*\.so", maps)), "glibc")


def limit(name: str, wanted: str) -> Row:
    """Compare a soft limit with the declared one, which is a floor."""
    if name not in _limits.NAMES:
        return Row(
            f"environment.limits.{name}",
            "unknown",
            None,
            wanted,
            reason=f"{name} is none of {', '.join(_limits.NAMES)}",
            action="correct the name in validate_memory_expect",
        )
    soft, hard = _limits.rlimit(name)
    unit = 1024 if name in ("memlock", "stack", "core", "as") and wanted.endswith("K") else 1
    good = soft == "unlimited" or (wanted != "unlimited" and int(soft) >= int(wanted.rstrip("K")) * unit)
    return judge(
        f"environment.limits.{name}",
        good,
        soft,
        wanted,
        threshold_source="declared",
        reason=f"this process has soft {soft}, hard {hard}; services do not read limits.conf, and its * is not root",
        action=f"set {name} where the jobs are started: limits.d for logins, Limit{name.upper()} for services, then "
        f"restart them",
    )


def parse(size: str) -> int:
    """Return bytes from 4G and the like."""
    word = size.strip().lower().rstrip("b").rstrip("i")
    return int(float(word[:-1]) * 2 ** SIZES[word[-1]]) if word[-1:] in SIZES else int(word)


def memory(wanted: str) -> Row:
    """Compare the tightest memory limit above this process with the declared one."""
    bounds = [
        (bound, level.name) for level in _cgroup.levels("memory") if (bound := _cgroup.memory_limit(level)) is not None
    ]
    bound, name = min(bounds, default=(None, ""))
    return judge(
        "environment.memory_max",
        bound == parse(wanted),
        bound,
        parse(wanted),
        unit="bytes",
        threshold_source="declared",
        reason=f"the tightest limit is that of {name}" if name else "no level above this process has a limit",
        action="the jobs do not run in the declared slice, or it has another limit",
    )


def gpus(context: Context, wanted: int | None) -> Iterator[Finding]:
    """Compare the number of GPUs that torch sees with the expected one."""
    if not context.gpus and not wanted:
        yield Row("environment.gpus", context.gap.status, 0, None, reason=context.gap.reason, action=context.gap.action)
        return
    seen = len(context.gpus)
    yield judge(
        "environment.gpus",
        seen >= (wanted or 1),
        seen,
        wanted or 1,
        unit="GPUs",
        threshold_source="declared, or what PCI shows",
        reason=context.gap.reason,
        action="look at nvidia-smi, CUDA_VISIBLE_DEVICES and the kernel log (Xid): a GPU is missing",
    )


def preload() -> Row:
    """A preloaded library that does not exist prints a line into every program."""
    files = re.split(r"[ :]+", os.environ.get("LD_PRELOAD", "").strip())
    missing = [name for name in files if "/" in name and not os.path.exists(name)]
    return judge(
        "environment.preload",
        not missing,
        missing or files,
        "files that exist",
        threshold_source="LD_PRELOAD",
        action="take the missing library out of LD_PRELOAD, or install it",
    )

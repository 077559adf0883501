# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 1: the life of an allocation, as torch and as the driver see it, once and over many cycles."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from ._report import MIB, Context, Finding, Measure, judge, label


def check(context: Context) -> Iterator[Finding]:
    """Look at each GPU."""
    for gpu in context.gpus:
        yield from lifecycle(context.torch, gpu)
        yield from leak(context.torch, gpu, context.options["cycles"], context.options["leak_mib"])


def state(torch: Any, gpu: str) -> tuple[int, int, int]:
    """Return allocated and reserved bytes of torch and what the driver says is in use."""
    torch.cuda.synchronize(gpu)
    free, total = torch.cuda.mem_get_info(gpu)
    return torch.cuda.memory_allocated(gpu), torch.cuda.memory_reserved(gpu), total - free


def lifecycle(torch: Any, gpu: str) -> Iterator[Finding]:
    """Allocate, delete and return one tensor; then ask for the peak of another."""
    name = f"allocator.{label(gpu)}"
    torch.zeros(1, device=gpu)
    torch.cuda.empty_cache()
    before = state(torch, gpu)
    tensor = torch.empty(1000, 1000, dtype=torch.float32, device=gpu)
    during = state(torch, gpu)
    del tensor
    after = state(torch, gpu)
    torch.cuda.empty_cache()
    end = state(torch, gpu)
    grown = during[0] - before[0]
    advice = "another process or a library allocates on this GPU; run the test on an idle GPU"
    yield Measure(f"{name}.allocated", grown, "bytes")
    yield Measure(f"{name}.reserved", during[1] - before[1], "bytes")
    yield judge(
        f"{name}.allocate",
        4_000_000 <= grown <= 4_000_000 + 512,
        grown,
        "4000000 to 4000512",
        unit="bytes",
        action=advice,
    )
    yield judge(f"{name}.delete", after[0] == before[0], after[0], before[0], unit="bytes allocated", action=advice)
    yield judge(f"{name}.keep", after[1] == during[1], after[1], during[1], unit="bytes reserved", action=advice)
    yield judge(f"{name}.empty_cache", end[1] <= before[1], end[1], before[1], unit="bytes reserved", action=advice)
    yield judge(f"{name}.driver", end[2] <= before[2] + 2 * MIB, end[2], before[2], unit="bytes in use", action=advice)
    yield peak(torch, gpu, name)


def peak(torch: Any, gpu: str, name: str) -> Finding:
    """The peak after a reset is that of what comes after it."""
    big = torch.empty(256 * MIB, dtype=torch.uint8, device=gpu)
    del big
    torch.cuda.reset_peak_memory_stats(gpu)
    base = torch.cuda.memory_allocated(gpu)
    small = torch.empty(64 * MIB, dtype=torch.uint8, device=gpu)
    seen = torch.cuda.max_memory_allocated(gpu) - base
    del small
    return judge(
        f"{name}.peak",
        seen == 64 * MIB,
        seen,
        64 * MIB,
        unit="bytes",
        action="report it: the peak counter is not reset",
    )


def leak(torch: Any, gpu: str, cycles: int, limit_mib: float) -> Iterator[Finding]:
    """Repeat allocate, use, delete and empty_cache; what the driver says is in use must not climb."""
    used = []
    for cycle in range(cycles):
        size = (1 + cycle % 7) * 8 * MIB
        tensor = torch.ones(size // 4, dtype=torch.float32, device=gpu)
        tensor.add_(1)
        del tensor
        torch.cuda.empty_cache()
        if cycle >= cycles // 10:  # the first cycles load kernels
            used.append(state(torch, gpu)[2])
    quarter = max(1, len(used) // 4)
    growth = (statistics.median(used[-quarter:]) - statistics.median(used[:quarter])) / MIB
    name = f"allocator.{label(gpu)}"
    yield Measure(
        f"{name}.leak_slope", round(growth * MIB / max(1, len(used) - quarter), 3), "bytes/cycle", samples=len(used)
    )
    yield judge(
        f"{name}.leak",
        growth <= limit_mib,
        growth,
        f"at most {limit_mib}",
        unit="MiB",
        threshold_source="option leak_mib",
        action="device memory climbs while nothing is kept: update driver and torch, or look for another process on "
        "the GPU",
    )

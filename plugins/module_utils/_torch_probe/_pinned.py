# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 6: host memory against the limit of the slice: what pinning costs, and that too much is foreseen."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

from . import _cgroup
from ._report import MIB, Context, Finding, Measure, Row, judge, release_pinned


def check(context: Context) -> Iterator[Finding]:
    """Touch what was asked for, look ahead, then pin as much as a job needs."""
    touch(context.options["touch_mib"] * MIB)
    size = context.options["mib"] * MIB
    room = _cgroup.headroom()
    yield from foresee(size, room)
    if room is not None and charged(size) > room[0]:
        return
    if context.gpus:
        yield from pin(context, size)
    else:
        yield Row("pinned.charge", context.gap.status, reason=context.gap.reason, action=context.gap.action)
        yield from stand_in(size)


def touch(size: int) -> None:
    """Really use this much host memory; only where the operator asks for it, since the kernel may end us."""
    if not size:
        return
    with mmap.mmap(-1, size) as buffer:
        for offset in range(0, size, mmap.PAGESIZE):
            buffer[offset] = 1


def charged(size: int) -> int:
    """Return what a pinned buffer costs: torch's pinned cache rounds up to a power of two."""
    return 1 << max(0, size - 1).bit_length()


def foresee(size: int, room: tuple[int, _cgroup.Level] | None) -> Iterator[Finding]:
    """Say what would not fit before anything is taken."""
    if room is None:
        yield Row(
            "pinned.foreseen",
            "pass",
            "no limit",
            f"{charged(size)} bytes",
            threshold_source="no memory limit on this process",
        )
        return
    left, level = room
    yield Measure("pinned.headroom", left, "bytes")
    yield judge(
        "pinned.foreseen",
        charged(size) <= left,
        left,
        charged(size),
        unit="bytes",
        threshold_source=f"memory limit of {level.name}",
        reason=f"{size >> 20} MiB pinned cost {charged(size) >> 20} MiB, and {level.name} leaves {left >> 20} MiB: "
        f"the job would be killed",
        action=f"raise the memory limit of {level.name}, or pin less",
    )


def resident_shared() -> int:
    """Return the shared pages of this process; pinned memory is of this kind and counts nowhere else."""
    for line in (_cgroup.text("/proc/self/status") or "").splitlines():
        if line.startswith("RssShmem:"):
            return int(line.split()[1]) * 1024
    return 0


def slice_shared() -> int | None:
    """Return the shared memory that our control group is charged."""
    levels = _cgroup.levels("memory")
    return _cgroup.shared(levels[0]) if levels else None


def pin(context: Context, size: int) -> Iterator[Finding]:
    """Pin a buffer and see what it is charged, and that it comes back."""
    torch: Any = context.torch
    release_pinned(torch)
    before = slice_shared(), resident_shared()
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    buffer.fill_(1)
    grown = (slice_shared() or 0) - (before[0] or 0)
    own = resident_shared() - before[1]
    yield Measure("pinned.slice_growth", grown, "bytes")
    yield Measure("pinned.process_growth", own, "bytes")
    if before[0] is None and own < 0.9 * size:
        yield Row(
            "pinned.charge",
            "unknown",
            reason="the control group of this process cannot be seen",
            action="mount /sys/fs/cgroup",
        )
    else:
        seen = max(grown, own)
        source = "pinned memory is charged to the slice as shared memory"
        advice = "pinned memory is charged elsewhere here: size the slice from what was measured"
        yield judge(
            "pinned.charge", seen >= 0.9 * size, seen, size, unit="bytes", threshold_source=source, action=advice
        )
    del buffer
    if release_pinned(torch):
        left = resident_shared() - before[1]
        yield judge(
            "pinned.returned",
            left <= 0.1 * size,
            left,
            0,
            unit="bytes",
            action="pinned memory stays with the process; report it",
        )


def stand_in(size: int) -> Iterator[Finding]:
    """Without a GPU: shared memory of the same size shows what the slice is charged."""
    before = resident_shared()
    with mmap.mmap(-1, size) as buffer:
        for offset in range(0, size, mmap.PAGESIZE):
            buffer[offset] = 1
        grown = resident_shared() - before
    yield judge(
        "pinned.shared_memory",
        grown >= 0.9 * size,
        grown,
        size,
        unit="bytes",
        action="shared memory is not accounted here",
    )

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 4: run out of GPU memory, catch it, and go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._allocator import state
from ._report import MIB, Context, Finding, judge, label


def check(context: Context) -> Iterator[Finding]:
    """Exhaust each GPU."""
    for gpu in context.gpus:
        yield from exhaust(context.torch, gpu)


def exhaust(torch: Any, gpu: str) -> Iterator[Finding]:
    """Ask for more than there is, fill the card up, give all back, then do a step."""
    name = f"out_of_memory.{label(gpu)}"
    step(torch, gpu)
    torch.cuda.empty_cache()
    before = state(torch, gpu)
    _free, total = torch.cuda.mem_get_info(gpu)
    caught = [overask(torch, gpu, 2 * total), fill_up(torch, gpu)]
    torch.cuda.empty_cache()
    after = state(torch, gpu)
    advice = (
        "look at the kernel log for Xid messages; memory that does not come back belongs to a leak in driver or torch"
    )
    yield judge(
        f"{name}.caught", all(caught), caught, [True, True], action="asking for too much was not refused; report it"
    )
    yield judge(f"{name}.allocated", after[0] == before[0], after[0], before[0], unit="bytes", action=advice)
    yield judge(
        f"{name}.driver", after[2] <= before[2] + 4 * MIB, after[2], before[2], unit="bytes in use", action=advice
    )
    right = step(torch, gpu)
    yield judge(f"{name}.next_step", right, "right values" if right else "wrong values", "right values", action=advice)
    torch.cuda.empty_cache()


def overask(torch: Any, gpu: str, size: int) -> bool:
    """Ask for one block that cannot be had."""
    try:
        torch.empty(size, dtype=torch.uint8, device=gpu)
    except torch.cuda.OutOfMemoryError:
        return True
    return False


def fill_up(torch: Any, gpu: str) -> bool:
    """Take blocks until there are no more."""
    free, _total = torch.cuda.mem_get_info(gpu)
    kept = []
    try:
        for _index in range(20):
            kept.append(torch.empty(max(MIB, free // 8), dtype=torch.uint8, device=gpu))
    except torch.cuda.OutOfMemoryError:
        return True
    return False


def step(torch: Any, gpu: str) -> bool:
    """Do a product whose result is known."""
    left = torch.ones(512, 256, device=gpu)
    right = torch.full((256, 512), 2.0, device=gpu)
    return bool(((left @ right) == 512.0).all())

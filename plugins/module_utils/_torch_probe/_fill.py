# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 2: fill the free memory of each GPU with patterns, read it back and compare every value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ._report import GIB, MIB, Context, Finding, Measure, judge, label

PATTERNS = (0x5A5A5A5A, -0x5A5A5A5B, 0)  # the second is the complement of the first; each is mixed with the address
CHUNK = GIB


def check(context: Context) -> Iterator[Finding]:
    """Fill each GPU."""
    for gpu in context.gpus:
        free, _total = context.torch.cuda.mem_get_info(gpu)
        yield from fill(context.torch, gpu, int(free * context.options["share"]), context.options["patterns"])


def fill(torch: Any, gpu: str, size: int, patterns: int) -> Iterator[Finding]:
    """Write and compare `size` bytes with the first patterns."""
    chunk = min(CHUNK, max(MIB, size // 4))
    chunks = take(torch, gpu, max(1, size // chunk - 1), chunk)  # one more is needed to compare with
    wrong, where = 0, ""
    for pattern in PATTERNS[:patterns]:
        for index, part in enumerate(chunks):
            write(torch, part, pattern + index)
        for index, part in enumerate(chunks):
            count = compare(torch, part, pattern + index)
            where = where or (f"first in block {index} of {len(chunks)}, {chunk >> 20} MiB each" if count else "")
            wrong += count
    total = sum(part.numel() * 4 for part in chunks)
    yield Measure(f"fill.{label(gpu)}.size", total, "bytes")
    yield judge(
        f"fill.{label(gpu)}",
        wrong == 0,
        wrong,
        0,
        unit="wrong values",
        reason=f"{wrong} of {total // 4} values differ, {where}",
        action="drain the host: the GPU returns other values than were written; look at ECC and row-remap state, "
        "replace the GPU",
    )


def take(torch: Any, gpu: str, count: int, chunk: int) -> Sequence[Any]:
    """Return blocks of memory; at least one, and fewer than asked where the rest is in pieces."""
    chunks: list[Any] = []
    for _index in range(count):
        try:
            chunks.append(torch.empty(chunk // 4, dtype=torch.int32, device=gpu))
        except torch.cuda.OutOfMemoryError:
            if not chunks:
                raise
            del chunks[-1]  # room to compare with
            break
    return chunks


def words(torch: Any, part: Any, pattern: int) -> Iterator[tuple[Any, Any]]:
    """Yield a block piece by piece with what belongs there: each word depends on its address and the pattern."""
    step = 64 * MIB // 4
    for start in range(0, part.numel(), step):
        piece = part[start : start + step]
        wanted = torch.arange(start, start + piece.numel(), dtype=torch.int32, device=part.device)
        yield piece, wanted.bitwise_xor_(pattern)


def write(torch: Any, part: Any, pattern: int) -> None:
    """Give each word its value."""
    for piece, wanted in words(torch, part, pattern):
        piece.copy_(wanted)


def compare(torch: Any, part: Any, pattern: int) -> int:
    """Return how many words are not what was written."""
    return sum(int((piece != wanted).sum()) for piece, wanted in words(torch, part, pattern))

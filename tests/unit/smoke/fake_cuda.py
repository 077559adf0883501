# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the CUDA side of torch on the CPU, for a host without a GPU; run by the torch interpreter.

Called as: fake_cuda.py FOLDER CHECK FAULT, where FOLDER holds the shipped probe; prints the rows and figures as JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import sys
import time
from typing import Any

TOTAL = 64 * 2**20


class Cuda:
    """What the checks ask of torch.cuda; `leak` bytes are lost with each emptied cache."""

    OutOfMemoryError = RuntimeError

    def __init__(self, leak: int) -> None:
        self.leak, self.lost = leak, 0

    def mem_get_info(self, _device: Any) -> tuple[int, int]:
        return TOTAL - self.lost, TOTAL

    def empty_cache(self) -> None:
        self.lost += self.leak

    def memory_allocated(self, _device: Any) -> int:
        return 0

    def memory_reserved(self, _device: Any) -> int:
        return 0

    def synchronize(self, *_device: Any) -> None:
        pass

    def device(self, _device: Any) -> Any:
        return contextlib.nullcontext()

    class Event:
        """A moment of the wall clock."""

        def __init__(self, enable_timing: bool) -> None:
            self.timed, self.at = enable_timing, 0.0

        def record(self) -> None:
            self.at = time.perf_counter()

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, last: Any) -> float:
            return float(last.at - self.at) * 1000


def poison(fill: Any) -> None:
    """Flip one bit between writing and reading."""
    write = fill.write

    def flip(torch: Any, part: Any, pattern: int) -> None:
        write(torch, part, pattern)
        part[12345] ^= 1

    fill.write = flip


def main(folder: str, check: str, fault: str) -> None:
    """Run one function of the probe with a fault."""
    sys.path.insert(0, folder)
    torch = importlib.import_module("torch")
    probe = {name: importlib.import_module(f"gpu_fleet_probe._{name}") for name in ("fill", "allocator", "bandwidth")}
    torch.cuda = Cuda(2**20 if fault == "leak" else 0)
    if check == "fill":
        if fault == "poison":
            poison(probe["fill"])
        found = probe["fill"].fill(torch, "cpu", 32 * 2**20, 3)
    elif check == "leak":
        found = probe["allocator"].leak(torch, "cpu", 40, 2.0)
    else:
        source = torch.ones(2**20, dtype=torch.uint8)
        target = torch.empty_like(source)
        slow = 0.01 if fault == "slow" else 0.0
        seconds = probe["bandwidth"].timed(torch, "cpu", 5, lambda: (time.sleep(slow), target.copy_(source)))
        found = [probe["bandwidth"].rate("bandwidth.gpu0.host_to_device_pinned", 2**20, [seconds])]
    print(json.dumps([dataclasses.asdict(one) for one in found]))


if __name__ == "__main__":
    main(*sys.argv[1:])

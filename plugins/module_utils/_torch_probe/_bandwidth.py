# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 5: how fast memory is copied between host and device, on a device and between devices."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ._report import MIB, Context, Finding, Measure, Row, label, measure, release_pinned

Copy = Callable[[], object]
# What disturbs a copy (other guests, a busy core, a bad place for the buffer) only slows it, often for a second or for
# the life of a buffer. So each figure is the best of the medians of some rounds, each with its own buffers and CPU.
ROUNDS = 8
COPIES = {"pinned": 4, "pageable": 1}  # in one sample: starting a copy weighs little beside a slow one


def check(context: Context) -> Iterator[Finding]:
    """Measure each GPU; the floors are held against the figures afterwards."""
    torch, options = context.torch, context.options
    for gpu in context.gpus:
        yield from host(torch, gpu, options["mib"] * MIB, options["samples"])
        yield device(torch, gpu, 4 * options["mib"] * MIB, options["samples"])
        yield from nodes(torch, gpu, options["mib"] * MIB, options["samples"])
    for source in context.gpus:
        for target in context.gpus:
            if source != target and (options["all_pairs"] or follows(context.gpus, source, target)):
                yield peer(torch, (source, target), options["mib"] * MIB, options["samples"])


def follows(gpus: tuple[str, ...], source: str, target: str) -> bool:
    """Tell whether the second comes after the first in a ring over all."""
    return gpus[(gpus.index(source) + 1) % len(gpus)] == target


def timed(torch: Any, gpu: str, samples: int, copy: Copy, copies: int = COPIES["pinned"]) -> list[float]:
    """Return the seconds for one copy, sample by sample, of one round."""
    seconds = []
    with torch.cuda.device(gpu):
        for index in range(max(3, samples // ROUNDS) + 1):
            first, last = (torch.cuda.Event(enable_timing=True) for _end in range(2))
            first.record()
            for _copy in range(copies):
                copy()
            last.record()
            last.synchronize()
            if index:  # the first one warms up
                seconds.append(first.elapsed_time(last) / 1000 / copies)
    return seconds


def rate(name: str, size: int, rounds: list[list[float]]) -> Measure:
    """Return GB/s, of 10^9 bytes: the best of the medians of the rounds, and how far these are apart."""
    medians = [statistics.median(size / second / 1e9 for second in seconds) for seconds in rounds]
    spread = measure(name, "GB/s", medians).spread
    return Measure(name, round(max(medians), 4), "GB/s", spread, sum(len(seconds) for seconds in rounds))


def host(torch: Any, gpu: str, size: int, samples: int) -> Iterator[Finding]:
    """Measure both directions, with pinned and with pageable memory."""
    there = torch.empty(size, dtype=torch.uint8, device=gpu)
    name, rounds = f"bandwidth.{label(gpu)}", defaultdict(list)
    for turn, (kind, copies) in ((turn, pair) for turn in range(ROUNDS) for pair in COPIES.items()):
        with on_one_cpu(turn):
            here = torch.ones(size, dtype=torch.uint8, pin_memory=kind == "pinned")
            ways: dict[str, Copy] = {
                "host_to_device": partial(there.copy_, here, non_blocking=True),
                "device_to_host": partial(here.copy_, there, non_blocking=True),
            }
            for way, copy in ways.items():
                rounds[f"{way}_{kind}"].append(timed(torch, gpu, samples, copy, copies))
            if not bool((here[::4096] == 1).all()):
                yield changed(f"{name}.{kind}_values")
            del here, ways, copy
            release_pinned(torch)
    yield from (rate(f"{name}.{kind}", size, seconds) for kind, seconds in rounds.items())


@contextmanager
def on_one_cpu(turn: int) -> Iterator[None]:
    """Stay on one of the CPUs that this process may use, another one each turn: pageable copies are a CPU's work."""
    before = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {before[turn * len(before) // ROUNDS]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def changed(name: str) -> Row:
    """Return the row for copies that arrive with other values."""
    return Row(name, "fail", "other values", "the values sent", action="drain the host: copies change data")


def device(torch: Any, gpu: str, size: int, samples: int) -> Measure:
    """Measure a copy on the device; bytes read and bytes written both count."""
    source, target = (torch.ones(size, dtype=torch.uint8, device=gpu) for _end in range(2))
    rounds = [timed(torch, gpu, samples, partial(target.copy_, source)) for _round in range(ROUNDS)]
    return rate(f"bandwidth.{label(gpu)}.device_to_device", 2 * size, rounds)


def peer(torch: Any, pair: tuple[str, str], size: int, samples: int) -> Measure:
    """Measure a copy from one GPU to another."""
    source, target = (torch.ones(size, dtype=torch.uint8, device=gpu) for gpu in pair)
    copy = partial(target.copy_, source, non_blocking=True)
    rounds = [timed(torch, pair[0], samples, copy) for _round in range(ROUNDS)]
    return rate(f"bandwidth.{label(pair[0])}.peer_{label(pair[1])}", size, rounds)


def node_cpus() -> dict[int, set[int]]:
    """Return the CPUs of each NUMA node that this process may use."""
    nodes: dict[int, set[int]] = {}
    root = "/sys/devices/system/node"
    allowed = os.sched_getaffinity(0)
    for entry in os.listdir(root) if os.path.isdir(root) else []:
        if entry.startswith("node") and entry[4:].isdigit():
            names = os.listdir(os.path.join(root, entry))
            cpus = {int(name[3:]) for name in names if name.startswith("cpu") and name[3:].isdigit()} & allowed
            if cpus:
                nodes[int(entry[4:])] = cpus
    return nodes


def nodes(torch: Any, gpu: str, size: int, samples: int) -> Iterator[Finding]:
    """Measure pinned memory of each NUMA node, where there are several."""
    found = node_cpus()
    if len(found) < 2:
        return
    before = os.sched_getaffinity(0)
    there = torch.empty(size, dtype=torch.uint8, device=gpu)
    release_pinned(torch)  # a buffer of another node must not be handed out again
    kept = []
    try:
        for node, cpus in sorted(found.items()):
            os.sched_setaffinity(0, cpus)
            kept.append(torch.ones(size, dtype=torch.uint8).pin_memory())
            copy = partial(there.copy_, kept[-1], non_blocking=True)
            rounds = [timed(torch, gpu, samples, copy) for _round in range(ROUNDS)]
            yield rate(f"bandwidth.{label(gpu)}.from_node{node}", size, rounds)
    finally:
        os.sched_setaffinity(0, before)

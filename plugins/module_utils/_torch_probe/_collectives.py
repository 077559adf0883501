# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 11: sums over processes: NCCL over the local GPUs, or gloo over two processes where there are not two."""

from __future__ import annotations

import datetime
import importlib
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from . import _children
from ._report import MIB, Context, Finding, Measure, Row, judge


def check(context: Context) -> Iterator[Finding]:
    """Start one process for each rank and judge what they computed."""
    gpus = len(context.gpus)
    backend, ranks = ("nccl", gpus) if gpus > 1 else ("gloo", 2)
    seconds = context.options["timeout"] * 0.8
    answers = together(context, backend, ranks, seconds)
    errors = [answer["error"] for answer in answers if "error" in answer]
    name = f"collectives.{backend}"
    note = f"{backend} over {ranks} processes" + ("" if backend == "nccl" else ": the plumbing only, no GPU takes part")
    if errors:
        yield Row(
            name,
            "fail",
            "error",
            "correct sums",
            reason=f"{note}; {errors[0]}",
            action="run with NCCL_DEBUG=INFO (gloo: look at the loopback interface) and look at topology, /dev/shm "
            "and memlock",
        )
    else:
        wrong = sum(answer["wrong"] for answer in answers)
        yield judge(
            name,
            wrong == 0,
            wrong,
            0,
            unit="wrong sums",
            threshold_source=note,
            action="drain the host: a link between GPUs changes data",
        )
        rate = min(answer["bytes"] / answer["seconds"] for answer in answers) / 1e9
        yield Measure(
            f"{name}.all_reduce", round(rate * 2 * (ranks - 1) / ranks, 3), "GB/s bus", samples=answers[0]["rounds"]
        )
    if backend == "gloo":
        why = "one GPU only" if gpus else context.gap.reason
        status = "skip" if gpus else context.gap.status
        yield Row(
            "collectives.nccl",
            status,
            reason=f"{why}; gloo over two processes was used for the plumbing",
            action=context.gap.action,
        )


def together(context: Context, backend: str, ranks: int, seconds: float) -> list[Any]:
    """Run all ranks; they meet at a file, so no port is taken."""
    handle, meeting = tempfile.mkstemp(dir=context.folder, prefix="meet-")
    os.close(handle)
    os.unlink(meeting)
    common = {"backend": backend, "ranks": ranks, "meeting": meeting, "mib": context.options["mib"], "seconds": seconds}
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    children = [
        _children.start(context.folder, "_collectives.rank", {"rank": rank, **common}, environment)
        for rank in range(ranks)
    ]
    return _children.collect(children, seconds)


def rank(rank: int, ranks: int, backend: str, meeting: str, mib: int, seconds: float) -> dict[str, Any]:
    """Sum over all ranks a few times and count wrong results."""
    torch = importlib.import_module("torch")
    group = importlib.import_module("torch.distributed")
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    limit = datetime.timedelta(seconds=seconds)
    group.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=ranks, timeout=limit)
    wrong, rounds, size = 0, 5, mib * MIB // 4
    started = time.monotonic()
    for turn in range(rounds + 1):
        values = torch.full((size,), float(rank + 1 + turn), device=device)
        if turn == 1:  # the first one sets up the connections
            started = time.monotonic()
        group.all_reduce(values)
        wrong += int((values != sum(index + 1 + turn for index in range(ranks))).sum())
    spent = time.monotonic() - started
    group.destroy_process_group()
    return {"wrong": wrong, "seconds": spent / rounds, "bytes": size * 4, "rounds": rounds}

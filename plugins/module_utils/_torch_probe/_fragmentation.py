# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 3: cut the cache of the allocator into pieces, then ask for a large block, in each mode of the allocator."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from . import _children
from ._report import MIB, Context, Finding, Measure, Row, judge

NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the first that is set wins
EXPANDABLE = "expandable_segments:True"
CLASSIC = "expandable_segments:False"
BLOCKS = 20


def check(context: Context) -> Iterator[Finding]:
    """Run what is in force, and the modes that are not, side by side."""
    given = modes(os.environ)
    size = {"mib": context.options["mib"]}
    children = [
        _children.start(context.folder, "_fragmentation.build", size, variables) for _text, variables in given.values()
    ]
    answers = dict(zip(given, _children.collect(children, context.options["timeout"] * 0.8)))
    for mode, answer in answers.items():
        yield from rows(mode, given[mode][0], answer)


def modes(environment: Mapping[str, str]) -> dict[str, tuple[str, dict[str, str]]]:
    """Return for each mode its configuration and the variables to set: jobs have what they have, under any name."""
    in_force = "".join(next((environment[name] for name in NAMES if name in environment), "").split())
    found: dict[str, tuple[str, dict[str, str]]] = {"in_force": (in_force, {})}
    others = {"expandable": EXPANDABLE, "classic": CLASSIC}
    if "expandable_segments" not in in_force:
        del others["classic"]  # what is in force is that already
    return {**found, **{mode: (text, dict.fromkeys(NAMES, text)) for mode, text in others.items()}}


def rows(mode: str, configuration: str, answer: dict[str, Any]) -> Iterator[Finding]:
    """Judge what one mode did: expandable segments must serve the large block; the others need not."""
    name = f"fragmentation.{mode}"
    if "error" in answer:
        yield Row(
            name,
            "fail",
            observed="error",
            reason=answer["error"],
            action=f"jobs cannot run with {configuration or 'the default'}",
        )
        return
    yield Measure(f"{name}.free_in_pieces", answer["holes"], "bytes")
    yield Measure(f"{name}.reserved_growth", answer["growth"], "bytes")
    served = "served" if answer["served"] else "refused"
    if EXPANDABLE not in configuration:
        reason = f"a block of {answer['wanted'] >> 20} MiB was {served} with {answer['holes'] >> 20} MiB free in pieces"
        yield Row(
            name,
            "pass",
            served,
            "served or refused",
            threshold_source="allocator without expandable segments",
            reason=reason,
        )
        return
    yield judge(
        name,
        answer["served"],
        served,
        "served",
        threshold_source="expandable_segments:True",
        action="expandable segments do not work here (an old kernel, WSL, a vGPU, or a torch before 2.10 that was "
        "given PYTORCH_ALLOC_CONF alone): fragmentation cannot be healed by them",
    )


def build(mib: int) -> dict[str, Any]:
    """Free every second block of a region that cannot grow, then ask for most of what is free."""
    torch = importlib.import_module("torch")
    size = mib * MIB
    total = torch.cuda.mem_get_info(0)[1]
    region = torch.empty(size, dtype=torch.uint8, device="cuda:0")
    del region
    blocks = [torch.empty(size // BLOCKS, dtype=torch.uint8, device="cuda:0") for _index in range(BLOCKS)]
    reserved = torch.cuda.memory_reserved(0)
    torch.cuda.set_per_process_memory_fraction(min(1.0, (reserved + 64 * MIB) / total), 0)
    blocks = blocks[::2]
    holes = reserved - torch.cuda.memory_allocated(0)
    wanted = int(holes * 0.6)
    served = True
    try:
        blocks.append(torch.empty(wanted, dtype=torch.uint8, device="cuda:0"))
    except torch.cuda.OutOfMemoryError:
        served = False
    return {"holes": holes, "wanted": wanted, "served": served, "growth": torch.cuda.memory_reserved(0) - reserved}

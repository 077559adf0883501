# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 7: a training step in several ways, and the relations in memory and values that must hold between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ._report import MIB, Context, Finding, Measure, Row, judge, label
from ._stack import ON_GPU, VARIANTS, Outcome, Stack

# How far the gradients may be from those of fp32, relative to their length.
TOLERANCE = {"bf16": 0.1, "fp16": 0.05}
EXACT = 1e-3
MINIMUM = 8 * MIB  # below it the relations drown in rounding


def check(context: Context) -> Iterator[Finding]:
    """Train on the first GPU, or on the CPU."""
    device = context.gpus[0] if context.gpus else "cpu"
    stack = Stack(context, device)
    name = f"training.{label(device)}"
    variants = VARIANTS + (ON_GPU if stack.gpu else ())
    outcomes = {variant.name: stack.step(variant) for variant in variants}
    for variant, outcome in outcomes.items():
        yield Measure(f"{name}.{variant}.peak", outcome.peak, "bytes")
        yield Measure(f"{name}.{variant}.time", round(outcome.seconds, 4), "s")
    yield from values(context, name, outcomes)
    yield from relations(name, outcomes, stack.parameters_bytes(), stack.gpu)
    if not context.gpus:
        yield Row(
            "training.gpu",
            context.gap.status,
            reason=f"done on the CPU: {context.gap.reason}",
            action=context.gap.action,
        )


def values(context: Context, name: str, outcomes: Mapping[str, Outcome]) -> Iterator[Finding]:
    """Hold each way's gradients against those of fp32."""
    base = outcomes["baseline"]
    for variant, outcome in outcomes.items():
        bound = next((value for start, value in TOLERANCE.items() if variant.startswith(start)), EXACT)
        finite = bool(context.torch.isfinite(outcome.gradients).all())
        distance = float((outcome.gradients - base.gradients).norm() / base.gradients.norm())
        if variant != "baseline" or not finite:
            yield judge(
                f"{name}.{variant}.values",
                finite and distance <= bound,
                round(distance, 6),
                f"at most {bound}",
                unit="relative distance of the gradients",
                threshold_source="agreement with fp32",
                action="this way to train gives other gradients than fp32: look at the GPU's health, and at the "
                "torch build",
            )


def relations(name: str, outcomes: Mapping[str, Outcome], gradients: int, gpu: bool) -> Iterator[Finding]:
    """Hold the peaks against each other."""
    peaks = {variant: outcome.peak for variant, outcome in outcomes.items()}
    base = peaks["baseline"]
    source = "peak of the baseline" if gpu else "what the baseline keeps for the backward pass"
    if base < MINIMUM:
        yield Row(
            f"{name}.relations",
            "unknown",
            base,
            MINIMUM,
            "bytes",
            reason="the step is too small to tell",
            action="use a larger step",
        )
        return
    bounds = {f"{way}_lower": (way, base - 1) for way in peaks if way not in ("baseline", "accumulation")}
    bounds["accumulation_bounded"] = ("accumulation", int((base + gradients) * 1.02) if gpu else int(base * 1.02) * 4)
    for way in ("bf16", "fp16"):
        if way in peaks:
            bounds[f"{way}_checkpointing_lowest"] = (f"{way}_checkpointing", peaks[way] - 1)
    for relation, (way, bound) in bounds.items():
        yield judge(
            f"{name}.{relation}",
            peaks[way] <= bound,
            peaks[way],
            f"at most {bound}",
            unit="bytes",
            threshold_source=source,
            action="a memory saving that jobs rely on does not save here: look at torch version and allocator "
            "configuration",
        )

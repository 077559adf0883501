# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values that a check hands out (rows and measurements), and what it is given to work with."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union

Status = Literal["pass", "warn", "fail", "skip", "unknown"]
# What a check can end with, other than a fault of its own; torch's errors are RuntimeErrors.
ERRORS = (
    RuntimeError,
    OSError,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    ImportError,
    AssertionError,
    MemoryError,
    EOFError,
)
MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One judged fact."""

    name: str
    status: Status
    observed: Any = None
    expected: Any = None
    unit: str = ""
    threshold_source: str = ""
    action: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Measure:
    """One measured figure: the median of its samples, and half of the distance between the quartiles."""

    name: str
    value: float
    unit: str
    spread: float = 0.0
    samples: int = 1


Finding = Union[Row, Measure]


@dataclass(frozen=True)
class Context:
    """What a check works with."""

    torch: Any
    numpy: Any  # None where the interpreter has no NumPy
    folder: str
    gpus: tuple[str, ...] = ()  # device names of torch; empty where no GPU is to be used
    gap: Row = field(default_factory=lambda: Row("", "skip"))  # why there are none
    options: Mapping[str, Any] = field(default_factory=dict)


def measure(name: str, unit: str, samples: Sequence[float]) -> Measure:
    """Return the figure for some samples."""
    ordered = sorted(samples)
    count = len(ordered)
    spread = (ordered[(3 * count) // 4 if count > 1 else 0] - ordered[count // 4]) / 2
    return Measure(name, round(statistics.median(ordered), 4), unit, round(spread, 4), count)


def judge(name: str, good: bool, observed: Any, expected: Any, **more: Any) -> Row:
    """Return a row that passes or fails; the action is only told where it fails."""
    if good:
        more = {key: value for key, value in more.items() if key not in ("action", "reason")}
    return Row(name, "pass" if good else "fail", observed, expected, **more)


def label(device: str) -> str:
    """Return a device name as part of a row's name: cuda:0 is gpu0."""
    return device.replace("cuda:", "gpu")


def release_pinned(torch: Any) -> bool:
    """Empty torch's cache of pinned memory, where this version can."""
    for name in ("_host_emptyCache", "_accelerator_emptyHostCache"):
        if hasattr(torch._C, name):
            getattr(torch._C, name)()
            return True
    return False

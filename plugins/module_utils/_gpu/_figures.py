# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of a GPU: each a value or a reason, each with its source, whichever source it came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

MIB = 1024 * 1024
# Every figure of a GPU, by its dotted name in the facts.
NAMES = (
    *("index", "uuid", "name", "architecture", "compute_capability", "minor_number", "pci_id", "kernel_driver"),
    *("memory.total", "memory.used", "memory.reserved", "memory.free", "memory.api", "memory.used_includes_reserved"),
    *("memory.unified", "addressing_mode", "memory_node", "local_cpus"),
    *("mig.enabled", "mig.pending", "mig.instances"),
    *("ecc.enabled", "ecc.pending", "ecc.volatile_corrected", "ecc.volatile_uncorrected"),
    *("ecc.aggregate_corrected", "ecc.aggregate_uncorrected"),
    *("row_remap.corrected", "row_remap.uncorrected", "row_remap.pending", "row_remap.failed"),
    *("retired_pages.single_bit", "retired_pages.double_bit", "retired_pages.pending"),
    *("pcie.generation", "pcie.generation_max", "pcie.width", "pcie.width_max", "pcie.replays"),
    *("nvlink.active", "nvlink.inactive"),
    *("clocks.graphics", "clocks.sm", "clocks.memory"),
    *("clocks.graphics_max", "clocks.sm_max", "clocks.memory_max"),
    *("throttle_reasons", "power.draw", "power.limit", "temperature.gpu", "temperature.memory"),
    *("utilization.gpu", "utilization.memory", "persistence", "compute_mode", "processes"),
)
UNITS = {"B": 1, "KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB}
NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([A-Za-z%/()]*)")
NOTHING = ("N/A", "NONE", "NOT AVAILABLE", "NOT SUPPORTED", "-", "")
LOST = ("GPU is lost", "GPU requires reset")  # in the words of NVML
MODELS_SHARING_MEMORY = re.compile(r"\b(?:GB10|DGX Spark|Thor|Orin|Xavier|Tegra)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Figure:
    """A value, or None and the reason why there is none."""

    value: Any
    reason: str | None = None


Reading = Mapping[str, Figure]


def absent(reason: str) -> Figure:
    """Return a figure that a source cannot give."""
    return Figure(None, reason)


def word(content: str | None) -> Figure:
    """Read what a tool printed: brackets around a reason come off, and a word for nothing is no value."""
    if content is None:
        return absent("not reported")
    bare = _read.clean(content).strip().strip("[]").strip()
    if bare.upper() in NOTHING:
        return absent("not available")
    lower = bare.lower()
    if "insufficient permission" in lower or "unknown error" in lower or lower == "unknown" or "deprecated" in lower:
        return absent(lower)
    lost = next((said for said in LOST if said.lower() in lower), None)
    if lost:
        return absent(lost)
    return Figure(bare)


def number(content: str | None) -> Figure:
    """Read a number with or without a unit (`143771 MiB`, `16x`, `39 C`); sizes come out in bytes."""
    found = word(content)
    if found.value is None:
        return found
    match = NUMBER.fullmatch(found.value)
    if match is None:
        return absent(f"not a number: {found.value}")
    value: int | float = float(match[1]) if "." in match[1] else int(match[1])
    return Figure(int(value * UNITS[match[2]]) if match[2] in UNITS else value)


def switch(content: str | None) -> Figure:
    """Read a word that stands for yes or no."""
    found = word(content)
    if found.value is None:
        return found
    known = {"enabled": True, "yes": True, "active": True, "disabled": False, "no": False, "not active": False}
    value = known.get(found.value.lower())
    return absent(f"not a switch: {found.value}") if value is None else Figure(value)


def total(parts: Iterable[Figure]) -> Figure:
    """Add up counts; those that are not there do not hide the others."""
    figures = list(parts)
    values = [figure.value for figure in figures if figure.value is not None]
    if values:
        return Figure(sum(values))
    return figures[0] if figures else absent("not reported")


def change(figure: Figure, convert: Callable[[Any], Any]) -> Figure:
    """Convert a value that is there."""
    return figure if figure.value is None else Figure(convert(figure.value))


def named(code: Figure, names: Mapping[int, str]) -> Figure:
    """Turn a code into its name; one that is newer than our list has none."""
    name = None if code.value is None else names.get(int(code.value))
    return code if code.value is None else Figure(name) if name else absent(f"unknown code {code.value}")


def unified(name: Any, addressing: Any, memory: Figure) -> Figure:
    """Tell a GPU that lives in the host's own memory: the driver then has no figure of its own for it."""
    if memory.value is not None:
        return Figure(False)
    if isinstance(name, str) and MODELS_SHARING_MEMORY.search(name):
        return Figure(True)
    if memory.reason not in ("not available", "not supported"):
        return absent(memory.reason or "not reported")
    return Figure(True) if addressing == "ATS" else absent("the driver gives no memory figure")


def lost(reading: Reading) -> str | None:
    """Return why a GPU is lost: one off the bus answers the first questions from memory and fails at others."""
    return next((figure.reason for figure in reading.values() if figure.reason in LOST), None)


def merge(readings: Sequence[tuple[str, Reading]]) -> dict[str, Any]:
    """Take each figure from the first source that has it; `sources` and `reasons` say which, or why none."""
    facts: dict[str, Any] = {}
    sources, reasons = {}, {}
    for name in NAMES:
        asked = [(source, reading[name]) for source, reading in readings if name in reading]
        chosen = next(((source, figure) for source, figure in asked if figure.value is not None), None)
        if chosen:
            sources[name] = chosen[0]
        else:
            reasons[name] = (asked[0][1].reason if asked else None) or "no source reports it"
        _place(facts, name, chosen[1].value if chosen else None)
    return {**facts, "sources": sources, "reasons": reasons}


def _place(facts: dict[str, Any], name: str, value: Any) -> None:
    group, dot, key = name.partition(".")
    if dot:
        facts.setdefault(group, {})[key] = value
    else:
        facts[name] = value


def pack(reading: Reading) -> dict[str, list[Any]]:
    """Turn figures into what JSON carries from a child to its parent."""
    return {name: [figure.value, figure.reason] for name, figure in reading.items()}


def unpack(packed: Mapping[str, list[Any]]) -> dict[str, Figure]:
    """Take figures back from what a child sent."""
    return {name: Figure(value, reason) for name, (value, reason) in packed.items()}

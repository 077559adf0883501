# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a PYTORCH_ALLOC_CONF string the way torch does, before it stops every job."""

from __future__ import annotations

import difflib

BOOLEAN = (
    "expandable_segments",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_background_threads",
    "graph_capture_record_stream_reuse",
    "pinned_use_hip_host_register",
    "release_lock_on_hipmalloc",
)
NUMBER = {
    "max_split_size_mb": 21,
    "pinned_num_register_threads": 1,
    "max_non_split_rounding_mb": 1,
    "pinned_max_round_threshold_mb": 1,
    "pinned_max_power2_size_mb": 1,
    "pinned_reserve_segment_size_mb": 1,
    "pinned_max_cached_size_mb": 1,
}
WORDS = {"backend": ("native", "cudaMallocAsync")}
FREE = ("roundup_power2_divisions", "roundup_bypass_threshold_mb")
SHARE = "garbage_collection_threshold"
KNOWN = (*BOOLEAN, *NUMBER, *WORDS, *FREE, SHARE)


def problems(text: str) -> list[str]:
    """Return one sentence for each thing that torch refuses, or that some version of it refuses."""
    return [problem for pair in _split(text) if (problem := _problem(pair))]


def concerns(text: str) -> list[str]:
    """Return one sentence for each pair that is taken and does not do what one thinks."""
    pairs = dict(pair.split(":", 1) for pair in _split(text) if ":" in pair)
    if pairs.get("expandable_segments") == "True" and "max_split_size_mb" in pairs:
        return [
            "max_split_size_mb: has no meaning with expandable_segments:True, and older versions of torch stop; drop "
            "one of them"
        ]
    return []


def normal(text: str) -> str:
    """Return the string without blanks."""
    return ",".join(_split(text))


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in "".join(text.split()):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def _problem(pair: str) -> str:
    name, colon, value = pair.partition(":")
    if not colon:
        return f"{pair}: needs the form name:value"
    if name not in KNOWN:
        near = difflib.get_close_matches(name, KNOWN, 1)
        return f"{name}: is not an option of the allocator" + (f"; {near[0]} was meant?" if near else "")
    if name in BOOLEAN:
        return "" if value in ("True", "False") else f"{name}: is {value}, and True or False was expected"
    if name in WORDS:
        return "" if value in WORDS[name] else f"{name}: is {value}, and one of {', '.join(WORDS[name])} was expected"
    if name in NUMBER:
        good = value.isdigit() and int(value) >= NUMBER[name]
        return "" if good else f"{name}: is {value}, and a whole number of at least {NUMBER[name]} was expected"
    return _share(value) if name == SHARE else ""


def _share(value: str) -> str:
    try:
        good = 0.0 < float(value) < 1.0
    except ValueError:
        good = False
    return "" if good else f"{SHARE}: is {value}, and a number between 0 and 1 was expected"

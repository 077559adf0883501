# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What torch takes for each option of its allocator; tried with torch 2.11 on a GPU and with 2.13 without one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

MOST = 2**40  # more than any number here can mean, and less than what torch cannot read


@dataclass(frozen=True)
class Rule:
    """Whether a value fits, and the words for what does."""

    fits: Callable[[str], bool]
    expected: str


def at_least(least: int, text: str) -> bool:
    """Tell whether a text is a whole number that torch can read, and not below the least."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(MOST)) and least <= int(text) <= MOST


def power(most: int, text: str) -> bool:
    """Tell whether a text is a power of two up to the most."""
    return at_least(1, text) and int(text) <= most and bin(int(text)).count("1") == 1


def divisions(text: str) -> bool:
    """Tell whether a text is a power of two for all sizes, or a list by size; 0 there leaves a size as it is."""
    found = re.fullmatch(r"\[([^\[\]]+)\]", text)
    if not found:
        return power(MOST, text)
    parts = (part.partition(":") for part in found[1].split(","))
    return all(
        (size == ">" or power(MOST, size)) and (many == "0" or power(MOST, many)) for size, _colon, many in parts
    )


def share(whole_too: bool, text: str) -> bool:
    """Tell whether a text is a share above 0 and below 1, or 1 itself where that is taken."""
    try:
        number = float(text) if text.isascii() else 0.0
    except ValueError:
        return False
    return 0.0 < number < 1.0 or (whole_too and number == 1.0)


def _rules() -> dict[str, Rule]:
    switches = (
        *("expandable_segments", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "throw_on_cudamalloc_oom"),
        *("pinned_use_cuda_host_register", "pinned_use_hip_host_register", "pinned_use_background_threads"),
        *("pinned_free_catch_all", "graph_capture_record_stream_reuse"),
    )
    # Versions differ on whether 20 is enough, so 21 is the portable least of the first two.
    numbers = {
        "max_split_size_mb": 21,
        "max_non_split_rounding_mb": 21,
        "pinned_max_round_threshold_mb": 1,
        "pinned_max_power2_size_mb": 1,
        "pinned_reserve_segment_size_mb": 1,
        "pinned_max_cached_size_mb": 1,
    }
    backends = ("native", "cudaMallocAsync")
    return {
        **dict.fromkeys(switches, Rule(("True", "False").__contains__, "True or False")),
        **{name: Rule(partial(at_least, n), f"a whole number of at least {n}") for name, n in numbers.items()},
        "backend": Rule(backends.__contains__, f"one of {', '.join(backends)}"),
        "roundup_power2_divisions": Rule(divisions, "a power of two or a list such as [256:1,512:2,>:4]"),
        "roundup_bypass_threshold_mb": Rule(partial(at_least, 0), "a whole number"),
        "pinned_num_register_threads": Rule(partial(power, 128), "a power of two up to 128"),
        "garbage_collection_threshold": Rule(partial(share, False), "a number between 0 and 1"),
        "per_process_memory_fraction": Rule(partial(share, True), "a number above 0 and up to 1"),
    }


RULES: Mapping[str, Rule] = _rules()

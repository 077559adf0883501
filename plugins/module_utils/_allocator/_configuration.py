# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a PYTORCH_ALLOC_CONF string the way torch does, before it stops every job."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _options

Version = tuple[int, ...]
OLD_NAME, HIP_NAME, NEW_NAME = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
NEW_NAME_SINCE = (2, 10)  # 2.9 warns about the old name, and its allocator for CUDA still reads that one only
SEGMENTS_KERNEL = (5, 6)  # the first with pidfd_getfd, by which segments are shared

# The first version of torch that knows an option; the older ones refuse it.
SINCE: dict[str, Version] = {
    "garbage_collection_threshold": (1, 12),
    "backend": (2, 0),
    "expandable_segments": (2, 1),
    "pinned_free_catch_all": (2, 12),
    "pinned_max_cached_size_mb": (2, 12),
    "pinned_max_power2_size_mb": (2, 12),
    "pinned_max_round_threshold_mb": (2, 12),
    "throw_on_cudamalloc_oom": (2, 12),
}
# The first version that refuses what older ones took.
UNTIL: dict[str, Version] = {"roundup_bypass_threshold_mb": (2, 11)}
NATIVE_ONLY = ("max_split_size_mb", "roundup_power2_divisions", "garbage_collection_threshold", "expandable_segments")


@dataclass(frozen=True)
class Where:
    """Where a string is to be used; None for what is not known."""

    torch: Version | None = None
    kernel: Version | None = None
    ptrace_limited: str | None = None  # why a process may not look into another one of its user


def problems(text: str, torch: Version | None = None) -> list[str]:
    """Return one sentence for each thing that torch refuses; without its version, of what no version takes."""
    found = [problem for pair in _split(text) if (problem := _problem(pair))]
    return [*found, *(problem for name in options(text) if torch and (problem := _untimely(name, torch)))]


def _untimely(name: str, torch: Version) -> str:
    """Say why an option is not for this version of torch."""
    has = ".".join(map(str, torch[:2]))
    if torch < SINCE.get(name, ()):
        return f"{name}: is known from torch {'.'.join(map(str, SINCE[name]))} on, and this is {has}; leave it out"
    return f"{name}: is no longer known to torch {has}; leave it out" if name in UNTIL and torch >= UNTIL[name] else ""


def concerns(text: str, where: Where | None = None) -> list[str]:
    """Return one sentence for each pair that is taken and does not do what one thinks."""
    pairs, where = options(text), where or Where()
    found = []
    if pairs.get("backend") == "cudaMallocAsync":
        ignored = [name for name in NATIVE_ONLY if name in pairs]
        found += [f"{name}: has no effect with backend:cudaMallocAsync; drop one of them" for name in ignored]
    if pairs.get("expandable_segments") != "True":
        return found
    if "max_split_size_mb" in pairs:
        found.append(
            "max_split_size_mb: has no meaning with expandable_segments:True, and older versions of torch stop; drop "
            "one of them"
        )
    if where.kernel and where.kernel < SEGMENTS_KERNEL:
        sharing = "expandable_segments: processes cannot share CUDA tensors, since"
        found.append(f"{sharing} this kernel is older than 5.6 and has no pidfd_getfd")
    elif where.ptrace_limited:
        sharing = "expandable_segments: processes may not be able to share CUDA tensors, since"
        found.append(f"{sharing} pidfd_getfd is limited here ({where.ptrace_limited})")
    return found


def options(text: str) -> dict[str, str]:
    """Return the pairs of a string, those without a value left out."""
    return dict(pair.split(":", 1) for pair in _split(text) if ":" in pair)


def names(torch: Version | None, hip: bool) -> tuple[str, ...]:
    """Return the variables that a version of torch reads; the first that is set wins, old names before the new one."""
    old = (OLD_NAME, HIP_NAME) if hip else (OLD_NAME,)
    return old if torch and torch < NEW_NAME_SINCE else (*old, NEW_NAME)


def unread(given: Mapping[str, str], torch: Version | None, hip: bool) -> list[str]:
    """Return one sentence for each variable that is set and that this version passes over."""
    read = names(torch, hip)
    winner = next((name for name in read if name in given), None)
    found = []
    for name in (OLD_NAME, HIP_NAME, NEW_NAME):
        if name not in given or name == winner:
            continue
        if name not in read:
            found.append(f"{name}: is not read by this torch; set {read[0]}")
        elif given[name] != given.get(winner or ""):
            found.append(f"{name}: differs from {winner}, which wins; set only one of them")
    return found


def version(text: str | None) -> Version | None:
    """Return a version as numbers, what follows a plus sign or a letter left out."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(int(word) for word in found[0].split(".")) if found else None


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
    rule = _options.RULES.get(name)
    if rule is None:
        near = difflib.get_close_matches(name, _options.RULES, 1)
        return f"{name}: is not an option of the allocator" + (f"; {near[0]} was meant?" if near else "")
    return "" if rule.fits(value) else f"{name}: is {value}, and {rule.expected} was expected"

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks with their limits in each profile, and the plan that a request makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# In the order in which they run. `timeout` is in seconds; the rest is told in the documentation of memory_smoke_test.
QUICK: dict[str, dict[str, Any]] = {
    "environment": {"timeout": 15},
    "huge_pages": {"timeout": 30, "mib": 256},
    "allocator": {"timeout": 30, "cycles": 100, "leak_mib": 2.0},
    "fill": {"timeout": 60, "share": 0.9, "patterns": 1},
    "out_of_memory": {"timeout": 30},
    "pinned": {"timeout": 30, "mib": 256, "touch_mib": 0},
    "bandwidth": {"timeout": 60, "mib": 256, "samples": 12, "all_pairs": False},
    "training": {"timeout": 60, "layers": 8, "width": 1024, "sequence": 512, "batch": 8},
    "fragmentation": {"timeout": 60, "mib": 2000},
    "dataloader": {
        "timeout": 60,
        "workers": 0,
        "prefetch": 2,
        "batch_mib": 4.0,
        "shared_tensors": 500,
        "start_method": "fork",
    },
    "collectives": {"timeout": 60, "mib": 64},
}
FULL: dict[str, dict[str, Any]] = {
    "environment": {},
    "huge_pages": {"mib": 1024, "timeout": 60},
    "allocator": {"cycles": 3000, "timeout": 180},
    "fill": {"share": 0.95, "patterns": 3, "timeout": 300},
    "out_of_memory": {"timeout": 60},
    "bandwidth": {"mib": 1024, "samples": 30, "all_pairs": True, "timeout": 300},
    "pinned": {"mib": 2048, "timeout": 60},
    "training": {"layers": 24, "timeout": 300},
    "fragmentation": {"mib": 8000, "timeout": 120},
    "dataloader": {"batch_mib": 16.0, "timeout": 180},
    "collectives": {"mib": 512, "timeout": 180},
}
# Without a GPU the steps are done on the CPU, and smaller.
ON_CPU: dict[str, dict[str, Any]] = {
    "huge_pages": {"mib": 128},
    "pinned": {"mib": 64},
    "training": {"layers": 4, "width": 128, "sequence": 128, "batch": 4},
    "collectives": {"mib": 4},
}
GPU_CHECKS = ("allocator", "fill", "out_of_memory", "bandwidth", "fragmentation")
NAMES = tuple(QUICK)


def plan(profile: str, wanted: Mapping[str, Any], gpus: bool, expect: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the enabled checks with their options: the profile's, those for hosts without a GPU, the operator's."""
    checks = {}
    for name in NAMES:
        own = {key: value for key, value in (wanted.get(name) or {}).items() if value is not None}
        if not own.pop("enabled", True):
            continue
        full = FULL[name] if profile == "full" else {}
        small = {} if gpus else ON_CPU.get(name, {})
        checks[name] = {**QUICK[name], **full, **small, **own}
    if "environment" in checks:
        checks["environment"]["expect"] = dict(expect)
    return checks

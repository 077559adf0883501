# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the module memory_smoke_test."""

from __future__ import annotations

from typing import Any

FLOORS = (
    "host_to_device_pinned",
    "device_to_host_pinned",
    "host_to_device_pageable",
    "device_to_host_pageable",
    "device_to_device",
    "peer",
)
OWN: dict[str, dict[str, str]] = {
    "environment": {},
    "huge_pages": {"mib": "int"},
    "allocator": {"cycles": "int", "leak_mib": "float"},
    "fill": {"share": "float", "patterns": "int"},
    "out_of_memory": {},
    "bandwidth": {"mib": "int", "samples": "int", "all_pairs": "bool"},
    "pinned": {"mib": "int", "touch_mib": "int"},
    "training": {"layers": "int", "width": "int", "sequence": "int", "batch": "int"},
    "fragmentation": {"mib": "int"},
    "dataloader": {
        "workers": "int",
        "prefetch": "int",
        "batch_mib": "float",
        "shared_tensors": "int",
        "start_method": "str",
    },
    "collectives": {"mib": "int"},
}


def spec() -> dict[str, Any]:
    """Return the argument spec."""
    checks: dict[str, Any] = {name: {"type": "dict", "options": _check(own)} for name, own in OWN.items()}
    checks["dataloader"]["options"]["start_method"]["choices"] = ["fork", "spawn", "forkserver"]
    expect = {
        "gpus": {"type": "int"},
        "cpus": {"type": "int"},
        "limits": {"type": "dict"},
        "memory_max": {"type": "str"},
        "thp": {"type": "str"},
        "environment": {"type": "dict"},
    }
    return {
        "profile": {"type": "str", "choices": ["quick", "full"], "default": "quick"},
        "python": {"type": "str", "default": ""},
        "venv": {"type": "path", "default": ""},
        "venv_index": {"type": "str", "default": ""},
        "venv_packages": {"type": "list", "elements": "str", "default": ["torch", "numpy"]},
        "user": {"type": "str", "default": ""},
        "slice": {"type": "str", "default": ""},
        "cgroups": {"type": "list", "elements": "path", "default": []},
        "launcher": {"type": "list", "elements": "str", "default": []},
        "like_service": {"type": "str", "default": ""},
        "environment": {"type": "dict", "default": {}},
        "busy": {"type": "bool", "default": False},
        "timeout": {"type": "int", "default": 0},
        "checks": {"type": "dict", "default": {}, "options": checks},
        "floors": {"type": "dict", "default": {}, "options": {name: {"type": "float"} for name in FLOORS}},
        "expect": {"type": "dict", "default": {}, "options": expect},
        "history": {"type": "path", "default": "/var/log/gpu-fleet"},
        "progress": {"type": "path", "default": ""},
        "history_length": {"type": "int", "default": 20},
        "drop": {"type": "float", "default": 10.0},
    }


def _check(own: dict[str, str]) -> dict[str, Any]:
    common = {"enabled": {"type": "bool", "default": True}, "timeout": {"type": "int"}}
    return {**common, **{name: {"type": kind} for name, kind in own.items()}}

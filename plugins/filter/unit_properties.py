# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn definitions of units, as a role takes them, into the properties that a set declares."""

from __future__ import annotations

DOCUMENTATION = r"""
name: unit_properties
short_description: Turn definitions of units into the properties that a set declares
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Takes a list of mappings, each with the name of a unit and its limits in small letters, and returns the rows that
    the option O(gpu_fleet.node.tuning#module:sets[].units) of M(gpu_fleet.node.tuning) takes.
  - A limit that is null or empty is left out, so that variables of a group can take one back.
options:
  _input:
    description:
      - The definitions. C(name) is the unit, or V(manager) for the manager's defaults, and C(restart) tells whether a
        service may be restarted.
      - The other keys are V(memory_max), V(memory_high), V(memory_low), V(memory_swap_max), V(tasks_max),
        V(cpu_weight), V(cpu_quota), V(allowed_cpus), V(allowed_memory_nodes), V(managed_oom_swap),
        V(managed_oom_memory_pressure), V(managed_oom_memory_pressure_limit), V(oom_policy), V(oom_score_adjust).
      - The limits are V(nofile), V(nproc), V(memlock), V(stack), V(core), V(as), V(data), V(fsize), V(rtprio).
    type: list
    elements: dict
    required: true
  reserve:
    description: What the value V(reserve) of a memory limit keeps for the system; empty for the rule of the collection.
    type: str
    default: ""
  gpu:
    description:
      - The facts C(gpu_fleet_gpu) of the host; an empty mapping where they were not gathered. A memory limit on a host
        whose GPU shares the memory gets a caveat.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Show what a slice declares
  ansible.builtin.debug:
    msg: "{{ [{'name': 'gpu-jobs.slice', 'memory_max': '64G'}] | gpu_fleet.node.unit_properties }}"
"""

RETURN = r"""
_value:
  description: Rows of unit, property, value and restart, and of a caveat where there is one.
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

PROPERTIES = {
    "memory_max": "MemoryMax",
    "memory_high": "MemoryHigh",
    "memory_low": "MemoryLow",
    "memory_swap_max": "MemorySwapMax",
    "tasks_max": "TasksMax",
    "cpu_weight": "CPUWeight",
    "cpu_quota": "CPUQuota",
    "allowed_cpus": "AllowedCPUs",
    "allowed_memory_nodes": "AllowedMemoryNodes",
    "managed_oom_swap": "ManagedOOMSwap",
    "managed_oom_memory_pressure": "ManagedOOMMemoryPressure",
    "managed_oom_memory_pressure_limit": "ManagedOOMMemoryPressureLimit",
    "oom_policy": "OOMPolicy",
    "oom_score_adjust": "OOMScoreAdjust",
}
LIMITS = ("nofile", "nproc", "memlock", "stack", "core", "as", "data", "fsize", "rtprio")


SHARED = (
    "the GPU shares the host's memory, and what it takes is not counted by this limit; leave it its part (a larger "
    "reserve for this host), and cap torch by a memory fraction"
)


def unit_properties(
    definitions: Sequence[Mapping[str, Any]], reserve: str = "", gpu: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return a row for each limit of each definition."""
    rows = [row for one in definitions for row in _rows(one, reserve)]
    shared = any((one.get("memory") or {}).get("unified") for one in (gpu or {}).get("gpus") or ())
    return [{**row, "caveat": SHARED} if shared and row["property"] == "MemoryMax" else row for row in rows]


def _rows(definition: Mapping[str, Any], reserve: str) -> list[dict[str, Any]]:
    unit = str(definition.get("name") or "")
    if not unit:
        raise AnsibleFilterError(f"unit definition {dict(definition)}: has no name, expected the name of a unit")
    restart = bool(definition.get("restart"))
    rows = []
    for key, value in definition.items():
        if key in ("name", "restart") or value in (None, ""):
            continue
        text = f"reserve:{reserve}" if value == "reserve" and reserve else str(value)
        rows.append({"unit": unit, "property": _property(unit, key), "value": text, "restart": restart})
    return rows


def _property(unit: str, key: str) -> str:
    """Return the property behind a key; the manager has defaults of the same limits."""
    name = f"Limit{key.upper()}" if key in LIMITS else PROPERTIES.get(key)
    if name is None:
        known = ", ".join((*PROPERTIES, *LIMITS))
        raise AnsibleFilterError(f"{unit}: has an unknown limit {key!r}, expected one of {known}")
    return f"Default{name}" if unit == "manager" else name


class FilterModule:
    """The filter, under its name."""

    def filters(self) -> dict[str, Callable[..., list[dict[str, Any]]]]:
        """Return the filter."""
        return {"unit_properties": unit_properties}

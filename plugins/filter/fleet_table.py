# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn the results of a fleet playbook into one short table, a line a host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_table
short_description: Turn the results of a fleet playbook into one short table
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Takes the result of M(gpu_fleet.node.tuning) or M(gpu_fleet.node.tuning_info) of each host and returns the lines
    of a
    table with changed, pending, conflicts, drift and verdict. A figure that the call does not give is a dash.
options:
  _input:
    description: A mapping from host to result; an empty result is a host that was not reached.
    type: dict
    required: true
  facts:
    description:
      - A mapping from host to the facts C(gpu_fleet_gpu). Where a host has some, the table says how many GPUs are
        visible of how many expected, and the state of the driver.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Show the fleet
  ansible.builtin.debug:
    msg: "{{ {'node1': tuning_result} | gpu_fleet.node.fleet_table }}"
"""

RETURN = r"""
_value:
  description: The lines of the table, the heading first.
  type: list
  elements: str
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

HEADING = ("host", "changed", "pending", "conflicts", "drift", "verdict")
GPUS = ("GPUs", "state")


def fleet_table(
    results: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Mapping[str, Any]] | None = None
) -> list[str]:
    """Return the lines of the table, in columns."""
    rows = [HEADING] + [(host, *_row(result or {})) for host, result in results.items()]
    if any((facts or {}).values()):
        known = facts or {}
        cells = [GPUS, *(_gpus(known.get(host) or {}) for host in results)]
        rows = [(row[0], *cell, *row[1:]) for row, cell in zip(rows, cells)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]) for row in rows]


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    figures = (_count(result.get(key)) for key in ("changes", "pending", "conflicts", "drift"))
    return (*figures, verdict(result))


def _gpus(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Return how many GPUs are visible of how many expected, and the state of the driver."""
    if not facts:
        return "-", "-"
    visible, expected = (facts.get(f"{name}_count") for name in ("visible", "expected"))
    return f"{'?' if visible is None else visible} of {'?' if expected is None else expected}", str(facts.get("state"))


def _count(rows: Sequence[Any] | None) -> str:
    return "-" if rows is None else str(len(rows))


def verdict(result: Mapping[str, Any]) -> str:
    """Return the one word for a host, with what to look at."""
    if result.get("failed"):
        return f"failed: {result.get('msg', 'no message')}"
    if result.get("unreachable"):
        return "not reached"
    if not result:
        return "no result: not reached, or failed before"
    if "in_sync" in result:
        return _audited(result)
    lost = [row["key"] for row in result.get("conflicts", []) if row["wins_at_boot"] != "ours"]
    if lost:
        return f"conflict: {_some(lost)}"
    if result.get("pending"):
        return f"pending: {_some([row['key'] for row in result['pending']])}"
    skipped = [row["key"] for row in result.get("not_applicable", [])]
    return f"ok, not applicable: {_some(skipped)}" if skipped else "ok"


def _audited(result: Mapping[str, Any]) -> str:
    if result["in_sync"]:
        return "in sync"
    unknown = all(row["actual"] == "unknown" for row in result["drift"])
    return f"{'unknown' if unknown else 'drift'}: {_some([row['key'] for row in result['drift']])}"


def _some(keys: Sequence[str]) -> str:
    names = list(dict.fromkeys(key.removeprefix("/sys/kernel/mm/") for key in keys))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class FilterModule:
    """Offer the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"fleet_table": fleet_table}

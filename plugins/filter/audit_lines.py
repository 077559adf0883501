# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what the audit of a host found, a line each."""

from __future__ import annotations

DOCUMENTATION = r"""
name: audit_lines
short_description: Say what the audit of a host found, a line each
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Takes the result of M(gpu_fleet.node.tuning_info) and returns a line for each difference, with the view in which it
    differs and who decides it, and a line for each other owner of a setting, with who wins at the next boot.
options:
  _input:
    description: The result; an empty mapping gives no lines.
    type: dict
    required: true
  limits:
    description: Whether the limits that users, services and slices really get follow, a line each.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Show what differs
  ansible.builtin.debug:
    msg: "{{ audit | gpu_fleet.node.audit_lines }}"
"""

RETURN = r"""
_value:
  description: The lines.
  type: list
  elements: str
"""

from collections.abc import Callable, Mapping
from typing import Any


def audit_lines(result: Mapping[str, Any], limits: bool = False) -> list[str]:
    """Return the lines."""
    lines = [_drift(row) for row in result.get("drift") or ()]
    lines += [_conflict(row) for row in result.get("conflicts") or ()]
    return lines + [_limit(row) for row in (result.get("effective") or () if limits else ())]


def _drift(row: Mapping[str, Any]) -> str:
    if row["view"] == "wanted":
        return f"{row['key']}: {row['by']}, and still {row['actual']}"
    if row["view"] == "host":
        return str(row["by"])
    if row["view"] == "running":
        return f"{row['key']}: wanted {row['wanted']}, but {row['by']}"
    actual = "nothing of ours" if row["actual"] is None else row["actual"]
    return f"{row['key']}: wanted {row['wanted']}, {row['view']} is {actual}" + (f" ({row['by']})" if row["by"] else "")


def _conflict(row: Mapping[str, Any]) -> str:
    theirs = "a value that is not understood" if row["theirs"] is None else row["theirs"]
    return f"{row['key']}: {row['source']} says {theirs}, wins at the next boot: {row['wins_at_boot']}"


def _limit(row: Mapping[str, Any]) -> str:
    return f"{row['who']}: {row['item']} is {row['value']} by {row['by']}"


class FilterModule:
    """Offer the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        """Return the filters by name."""
        return {"audit_lines": audit_lines}

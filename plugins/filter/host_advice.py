# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what the facts of a host mean for the settings that are declared for it."""

from __future__ import annotations

DOCUMENTATION = r"""
name: host_advice
short_description: Say what the facts of a host mean for its settings
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Takes the facts of M(gpu_fleet.node.gpu_facts) and M(gpu_fleet.node.allocator_facts) and returns one sentence for
    each thing that an operator should know before the settings are made true.
  - These are the state of the driver, GPUs that are missing, NUMA nodes without a way to bind memory, and the
    advisories.
options:
  _input:
    description: The facts C(gpu_fleet_gpu); an empty mapping where they were not gathered.
    type: dict
    required: true
  allocator:
    description: The facts C(gpu_fleet_allocator); an empty mapping where they were not gathered.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Show what the facts mean
  ansible.builtin.debug:
    msg: "{{ ansible_facts.gpu_fleet_gpu | gpu_fleet.node.host_advice(ansible_facts.gpu_fleet_allocator) }}"
"""

RETURN = r"""
_value:
  description: One sentence for each.
  type: list
  elements: str
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Facts = Mapping[str, Any]


def host_advice(gpu: Facts, allocator: Facts | None = None) -> list[str]:
    """Return the sentences."""
    advisories = (allocator or {}).get("advisories") or ()
    return [*_gpus(gpu or {}), *(f"{one['subject']}: {one['problem']}; {one['action']}" for one in advisories)]


def _gpus(gpu: Facts) -> Iterator[str]:
    if gpu.get("state") not in (None, "ok", "no_gpu"):
        yield f"GPUs: the state is {gpu['state']}; {gpu.get('action') or 'look at the driver'}"
    elif gpu.get("as_expected") is False:
        yield f"GPUs: {gpu.get('visible_count')} are visible and {gpu.get('expected_count')} expected"
    numa = gpu.get("numa") or {}
    if gpu.get("gpus") and (numa.get("cpu_nodes") or 0) > 1 and numa.get("numactl") is None:
        yield "numactl: is missing on a host with several NUMA nodes, so gpu-run binds CPUs and no memory"


class FilterModule:
    """Offer the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        """Return the filters by name."""
        return {"host_advice": host_advice}

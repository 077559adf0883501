# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the GPUs of a host are together: expected against visible, AMD GPUs, the map of NUMA nodes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._assemble import Scene, near
from ansible_collections.gpu_fleet.node.plugins.module_utils._topology import AMD, NVIDIA


def expected(scene: Scene, facts: Sequence[Mapping[str, Any]], count: int | None) -> dict[str, Any]:
    """Compare the GPUs that can be used with those that should be there; AMD's count where there are no others."""
    usable = [card for card in scene.cards if not card.excluded and not card.passed_on]
    nvidia = [card.where.address for card in usable if card.where.vendor == NVIDIA]
    amd = [] if nvidia or facts else [card.where for card in usable]
    seen = {one["bus_id"] for one in facts if one["visible"]} | {one.address for one in amd if one.driver}
    shown = [*nvidia, *(one.address for one in amd)]
    visible = sum(one["visible"] for one in facts) + sum(one.driver is not None for one in amd)
    wanted = len(shown) if count is None else count
    return {
        "visible_count": visible,
        "expected_count": wanted,
        "expected_from": "PCI" if count is None else "expected_count",
        "as_expected": visible == wanted,
        "missing": [address for address in shown if address not in seen],
    }


def amd(scene: Scene) -> list[dict[str, Any]]:
    """Return what sysfs alone says about AMD GPUs."""
    found = []
    for card in scene.cards:
        if card.where.vendor == AMD:
            where = _topology.place(scene.nodes, [("sysfs", card.where.node)])
            reasons = {name: figure.reason for name, figure in card.reading.items() if figure.value is None}
            values = {name: figure.value for name, figure in card.reading.items()}
            pcie = {key: values[f"pcie.{key}"] for key in ("generation", "generation_max", "width", "width_max")}
            found.append(
                {
                    "bus_id": card.where.address,
                    "pci_id": values["pci_id"],
                    "kernel_driver": values["kernel_driver"],
                    "memory": {"total": values["memory.total"]},
                    "numa_node": where.node,
                    "local_cpus": values["local_cpus"],
                    "pcie": pcie,
                    "near": near(scene, card, where.node),
                    "reasons": {**reasons, **({"numa_node": where.source} if where.node is None else {})},
                }
            )
    return found


def numa(scene: Scene, facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the nodes with their distances and the GPUs on each."""
    return {
        "cpu_nodes": sum(bool(node.cpus) for node in scene.nodes),
        "memory_policy_allowed": scene.policy[0],
        "numactl": shutil.which("numactl"),
        "memory_policy_reason": scene.policy[1],
        "nodes": [
            {
                "node": node.number,
                "cpus": _topology.format_cpus(node.cpus) or None,
                "memory_total": node.memory,
                "distances": {str(other): far for other, far in node.distances},
                "gpus": [one["bus_id"] for one in facts if one["numa_node"] == node.number and one["bus_id"]],
                "gpu_memory_of": [one["bus_id"] for one in facts if one["memory_node"] == node.number],
            }
            for node in scene.nodes
        ],
    }

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put the answers of all sources together, GPU by GPU: pure, values in and facts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _figures
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import MIB, Figure
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._pci import AMD, NVIDIA, Device
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._state import PASSED_ON

IDLE_MEMORY = 512 * MIB  # used on a card without a job: a display, the context of a monitor
IDLE_SHARE = 0.02  # of all memory, where what the driver reserves counts as used


@dataclass(frozen=True)
class Told:
    """One GPU as NVML or nvidia-smi tells it."""

    source: str
    address: str | None
    figures: Mapping[str, Figure]
    memory_nodes: Sequence[int] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Scene:
    """Everything that is known about the machine around the GPUs."""

    devices: Sequence[Device]
    nodes: Sequence[_topology.Node]
    adapters: Sequence[Device] = ()
    told: Sequence[Told] = ()
    xids: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    log_reason: str | None = None


def gpus(scene: Scene) -> list[dict[str, Any]]:
    """Return the facts of each NVIDIA GPU that PCI shows or a source tells of."""
    by_address = {one.address: one for one in scene.told if one.address}
    shown = [device for device in scene.devices if device.vendor == NVIDIA]
    facts = [_gpu(scene, device.address, device, by_address.pop(device.address, None)) for device in shown]
    facts += [_gpu(scene, one.address, None, one) for one in by_address.values()]
    facts += _nameless(scene, facts)
    return sorted(facts, key=lambda one: (one["index"] is None, one["index"], one["bus_id"] or ""))


def _nameless(scene: Scene, facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Match GPUs that a source could not name with those PCI shows and nobody told of; the rest stand alone."""
    silent = [one for one in facts if not one["visible"] and _can_be_lost(one, scene)]
    alone = []
    for one in scene.told:
        if one.address is not None:
            continue
        if silent:
            silent[0].update(lost=True, lost_reason=one.problem, index=one.figures.get("index", Figure(None)).value)
            del silent[0]
        else:
            alone.append(_gpu(scene, None, None, one))
    return alone


def _gpu(scene: Scene, address: str | None, device: Device | None, told: Told | None) -> dict[str, Any]:
    readings = [(told.source, told.figures)] if told else []
    readings += [("sysfs", device.reading)] if device else []
    facts = _figures.merge(readings)
    where = _place(scene, device, told, facts)
    facts["numa_node"] = where.node
    facts["reasons" if where.node is None else "sources"]["numa_node"] = where.source
    problem = told.problem if told else None
    xids = scene.xids.get(address or "", [])
    if scene.log_reason:
        facts["reasons"]["xids"] = scene.log_reason
    facts.update(
        bus_id=address,
        visible=told is not None and problem is None,
        excluded=bool(device and device.excluded),
        lost=problem is not None,
        lost_reason=problem,
        xids=None if scene.log_reason else xids,
        near=_near(scene, device, where.node),
    )
    facts.update(_busy(facts))
    return facts


def _place(scene: Scene, device: Device | None, told: Told | None, facts: dict[str, Any]) -> _topology.Place:
    """Return the node of a GPU: sysfs first, then the driver's nodes and CPUs, then where its own memory is."""
    claims: list[tuple[str, int | None]] = [("sysfs", device.numa_node if device else None)]
    if told:
        usable = [node.number for node in scene.nodes if node.cpus and node.number in told.memory_nodes]
        claims.append((told.source, usable[0] if len(usable) == 1 else None))
        cpus = told.figures.get("local_cpus", Figure(None)).value
        claims.append((f"{told.source} CPUs", _topology.single_node(scene.nodes, _topology.parse_cpus(cpus))))
        claims.append((told.source, facts["memory_node"]))
    return _topology.place(scene.nodes, claims)


def _near(scene: Scene, device: Device | None, node: int | None) -> list[dict[str, Any]]:
    """Return the network adapters with how near they are, the nearest first."""
    if device is None:
        return []
    ranks = ("PIX", "PXB", "PHB", "NODE", "SYS", "unknown")
    found = []
    for adapter in scene.adapters:
        theirs = _topology.place(scene.nodes, [("sysfs", adapter.numa_node)]).node
        same = None if node is None or theirs is None else node == theirs
        found.append(
            {
                "bus_id": adapter.address,
                "names": list(adapter.names),
                "nearness": _topology.nearness(device.branch, adapter.branch, same),
                "numa_node": theirs,
            }
        )
    return sorted(found, key=lambda one: (ranks.index(one["nearness"]), one["bus_id"]))


def _busy(facts: dict[str, Any]) -> dict[str, Any]:
    """Tell whether somebody works on the GPU: by its processes, and by memory for those that are hidden from here."""
    processes, memory = facts["processes"], facts["memory"]
    if processes:
        names = ", ".join(f"{one['name'] or 'process'} {one['pid']}" for one in processes[:3])
        return {"busy": True, "busy_reason": f"{len(processes)} on it: {names}"}
    used = memory["used"]
    if used is None:
        return {"busy": None if processes is None else False, "busy_reason": None}
    allowed = IDLE_MEMORY
    if memory["used_includes_reserved"]:
        allowed += int((memory["total"] or 0) * IDLE_SHARE)
    if used > allowed:
        return {"busy": True, "busy_reason": f"{used // MIB} MiB in use by nobody that can be seen from here"}
    return {"busy": False, "busy_reason": None}


def _can_be_lost(facts: dict[str, Any], scene: Scene) -> bool:
    """Tell a GPU that the driver should answer for: ours to use, not excluded, not handed to a virtual machine."""
    if facts["excluded"] or facts["kernel_driver"] in PASSED_ON:
        return False
    return any(device.known_to_driver for device in scene.devices if device.address == facts["bus_id"])


def mark_lost(facts: list[dict[str, Any]], scene: Scene) -> None:
    """Mark those that a source which answered does not list although the driver has them."""
    for one in facts:
        if not one["visible"] and not one["lost"] and _can_be_lost(one, scene):
            fallen = any(entry["code"] == 79 for entry in one["xids"] or [])
            reason = "fallen off the bus (XID 79)" if fallen else "the driver holds it but does not list it"
            one.update(lost=True, lost_reason=reason)


def expected(facts: Sequence[dict[str, Any]], count: int | None) -> dict[str, Any]:
    """Compare the GPUs that can be used with those that should be there."""
    usable = [one for one in facts if one["bus_id"] and not one["excluded"] and one["kernel_driver"] not in PASSED_ON]
    visible = sum(one["visible"] for one in facts)
    wanted = len(usable) if count is None else count
    return {
        "visible_count": visible,
        "expected_count": wanted,
        "expected_from": "PCI" if count is None else "expected_count",
        "as_expected": visible == wanted,
        "missing": [one["bus_id"] for one in usable if not one["visible"]],
    }


def amd(scene: Scene) -> list[dict[str, Any]]:
    """Return what sysfs alone says about AMD GPUs."""
    found = []
    for device in scene.devices:
        if device.vendor == AMD:
            where = _topology.place(scene.nodes, [("sysfs", device.numa_node)])
            flat = {name: figure.value for name, figure in device.reading.items()}
            found.append(
                {
                    "bus_id": device.address,
                    "pci_id": flat["pci_id"],
                    "kernel_driver": flat["kernel_driver"],
                    "memory_total": device.vram,
                    "numa_node": where.node,
                    "numa_node_from": where.source,
                    "local_cpus": flat["local_cpus"],
                    "pcie": {
                        key: flat[f"pcie.{key}"] for key in ("generation", "generation_max", "width", "width_max")
                    },
                    "near": _near(scene, device, where.node),
                }
            )
    return found


def numa(nodes: Sequence[_topology.Node], facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the nodes with their distances and the GPUs on each."""
    return {
        "cpu_nodes": sum(bool(node.cpus) for node in nodes),
        "nodes": [
            {
                "node": node.number,
                "cpus": _topology.format_cpus(node.cpus) or None,
                "memory_total": node.memory,
                "distances": {str(other): far for other, far in node.distances},
                "gpus": [one["bus_id"] for one in facts if one["numa_node"] == node.number and one["bus_id"]],
                "gpu_memory_of": next((one["bus_id"] for one in facts if one["memory_node"] == node.number), None),
            }
            for node in nodes
        ],
    }

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put the answers of all sources together, GPU by GPU: pure, values in and facts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _figures
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._binding import NOT_PERMITTED, WORDS
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import MIB, Figure
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._pci import Adapter, Card
from ansible_collections.gpu_fleet.node.plugins.module_utils._topology import NVIDIA

IDLE_MEMORY = 256 * MIB  # used on a card without a job: a display, the context of a monitor
# Where the driver's own reserve is counted as used, an idle card shows this much.
IDLE_RESERVE, IDLE_RESERVE_SHARE = 1024 * MIB, 0.02
BUSY_PERCENT = 10
NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS", "unknown")
FALLEN_OFF = 79  # the XID


@dataclass(frozen=True)
class Told:
    """One GPU as NVML or nvidia-smi tells it; `problem` says why it cannot be used."""

    source: str
    address: str | None
    figures: Mapping[str, Figure]
    memory_nodes: Sequence[int] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Scene:
    """Everything that is known about the machine around the GPUs."""

    cards: Sequence[Card]
    nodes: Sequence[_topology.Node]
    adapters: Sequence[Adapter] = ()
    told: Sequence[Told] = ()
    xids: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    log_reason: str | None = None
    policy: Sequence[Any] = (None, "the kernel could not be asked")  # whether a memory policy may be set, and why not


def gpus(scene: Scene) -> list[dict[str, Any]]:
    """Return the facts of each NVIDIA GPU that PCI shows or a source tells of."""
    told = _named(scene)
    by_address = {one.address: one for one in told if one.address}
    shown = [card for card in scene.cards if card.where.vendor == NVIDIA]
    facts = [_gpu(scene, card.where.address, card, by_address.pop(card.where.address, None)) for card in shown]
    facts += [_gpu(scene, one.address, None, one) for one in by_address.values()]
    facts += [_gpu(scene, None, None, one) for one in told if one.address is None]
    return sorted(facts, key=lambda one: (one["index"] is None, one["index"], one["bus_id"] or ""))


def _named(scene: Scene) -> list[Told]:
    """Give GPUs that a source could not name the addresses of those that PCI shows and nobody told of, in order."""
    taken = {one.address for one in scene.told}
    usable = [card for card in scene.cards if card.where.vendor == NVIDIA and not (card.excluded or card.passed_on)]
    usable.sort(key=lambda card: not card.known_to_driver)
    silent = [card.where.address for card in usable if card.where.address not in taken]
    named = []
    for one in scene.told:
        named.append(replace(one, address=silent.pop(0)) if silent and one.address is None else one)
    return named


def _is_expected(card: Card) -> bool:
    """Tell a GPU that the driver should answer for: ours to use, not excluded, not handed to a virtual machine."""
    return card.known_to_driver and not card.excluded and not card.passed_on


def _is_lost(told: Told | None) -> bool:
    return told is not None and told.problem not in (None, WORDS[NOT_PERMITTED])


def _gpu(scene: Scene, address: str | None, card: Card | None, told: Told | None) -> dict[str, Any]:
    readings = [(told.source, told.figures)] if told else []
    readings += [("sysfs", card.reading)] if card else []
    facts = _figures.merge(readings)
    where = _place(scene, card, told, facts)
    facts["numa_node"] = where.node
    facts["reasons" if where.node is None else "sources"]["numa_node"] = where.source
    if scene.log_reason:
        facts["reasons"]["xids"] = scene.log_reason
    problem = told.problem if told else None
    facts.update(
        bus_id=address,
        visible=told is not None and problem is None,
        excluded=bool(card and card.excluded),
        lost=_is_lost(told),
        problem=problem,
        xids=None if scene.log_reason else scene.xids.get(address or "", []),
        near=near(scene, card, where.node),
    )
    facts.update(busy(facts))
    return facts


def _place(scene: Scene, card: Card | None, told: Told | None, facts: dict[str, Any]) -> _topology.Place:
    """Return the node of a GPU: sysfs first, then the driver's nodes and CPUs, then where its own memory is."""
    claims: list[tuple[str, int | None]] = [("sysfs", card.where.node if card else None)]
    if told:
        usable = [node.number for node in scene.nodes if node.cpus and node.number in told.memory_nodes]
        claims.append((told.source, usable[0] if len(usable) == 1 else None))
        cpus = told.figures.get("local_cpus", Figure(None)).value
        claims.append((f"{told.source} CPUs", _topology.single_node(scene.nodes, _topology.parse_cpus(cpus))))
        claims.append((told.source, facts["memory_node"]))
    return _topology.place(scene.nodes, claims)


def near(scene: Scene, card: Card | None, node: int | None) -> list[dict[str, Any]]:
    """Return the network adapters with how near they are, the nearest first."""
    found = []
    for adapter in scene.adapters if card else ():
        theirs = _topology.place(scene.nodes, [("sysfs", adapter.where.node)]).node
        same = None if node is None or theirs is None else node == theirs
        found.append(
            {
                "bus_id": adapter.where.address,
                "names": list(adapter.names),
                "nearness": _topology.nearness(card.where.branch if card else (), adapter.where.branch, same),
                "numa_node": theirs,
            }
        )
    return sorted(found, key=lambda one: (NEARNESS.index(one["nearness"]), one["bus_id"]))


def busy(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Tell whether somebody works on the GPU: by processes and load, and by memory for those hidden from here."""
    computing = [one for one in facts["processes"] or [] if one["kind"] == "compute"]
    if computing:
        names = ", ".join(f"{one['name'] or 'process'} ({one['pid']})" for one in computing[:3])
        more = f" and {len(computing) - 3} more" if len(computing) > 3 else ""
        return {"busy": True, "busy_reason": f"in use by {names}{more}"}
    memory, load = facts["memory"], facts["utilization"]["gpu"]
    if load is not None and load >= BUSY_PERCENT:
        return {"busy": True, "busy_reason": f"{load} % load"}
    allowed = IDLE_MEMORY
    if memory["used_includes_reserved"]:
        allowed = max(IDLE_RESERVE, int((memory["total"] or 0) * IDLE_RESERVE_SHARE))
    if memory["used"] is not None and memory["used"] > allowed:
        return {"busy": True, "busy_reason": f"{memory['used'] // MIB} MiB in use by nobody that can be seen from here"}
    known = facts["processes"] is not None or memory["used"] is not None
    return {"busy": False if known else None, "busy_reason": None}


def mark_lost(facts: Sequence[dict[str, Any]], scene: Scene) -> None:
    """Mark those that a source which answered does not list although the driver has them."""
    addresses = [card.where.address for card in scene.cards if _is_expected(card)]
    for one in facts:
        if not one["visible"] and not one["problem"] and one["bus_id"] in addresses:
            fallen = any(entry["code"] == FALLEN_OFF for entry in one["xids"] or [])
            problem = "fallen off the bus (XID 79)" if fallen else "the driver holds it but does not list it"
            one.update(lost=True, problem=problem)

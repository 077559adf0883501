# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan where a command runs: pure, from the options and the scene to CPUs, memory, environment and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _devices
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Device, Gpu, Plan, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._options import Defaults, Options
from ansible_collections.gpu_fleet.node.plugins.module_utils._topology import Node


def plan(options: Options, defaults: Defaults, scene: Scene) -> Plan:
    """Return the plan; what is amiss stands in its notes."""
    devices, notes = _devices.given(scene)
    if options.gpus:
        devices = _devices.choose(scene, options.gpus, devices)
    near, more = _of_rank(scene, devices)
    made = Plan(near, notes=(*scene.notes, *notes, *more))
    made = _environment(options, defaults, scene, replace(made, devices=near if options.isolate else devices))
    made = replace(made, devices=near)
    if not near:
        return replace(made, notes=(*made.notes, "no GPU is here for this process: it runs unbound"))
    return _bind(options, scene, made)


def _of_rank(scene: Scene, devices: tuple[Device, ...]) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the device of the local rank; a list of one is already that of the rank."""
    rank = _devices.rank(scene.environment)
    if rank is None or len(devices) < 2:
        return devices, ()
    if rank < len(devices):
        return (devices[rank],), ()
    return (), (f"local rank {rank}: has no GPU of its own among {len(devices)}",)


def _environment(options: Options, defaults: Defaults, scene: Scene, made: Plan) -> Plan:
    """Set the administrator's variables that the caller has not set, and the device list where it is ours to set."""
    wanted = {name: value for name, value in defaults.environment.items() if name not in scene.environment}
    if not (options.gpus or options.isolate) or not made.devices or not made.devices[0].gpu.nvidia:
        return replace(made, environment=wanted)
    notes = made.notes
    if all(one.uuid for one in made.devices):
        wanted["CUDA_VISIBLE_DEVICES"] = ",".join(str(one.uuid) for one in made.devices)
    else:
        wanted["CUDA_VISIBLE_DEVICES"] = ",".join(str(one.gpu.index) for one in made.devices)
        wanted["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        notes = (*notes, "no UUID is known: CUDA_VISIBLE_DEVICES has indexes in the order of the bus")
    return replace(made, environment=wanted, notes=notes)


def _bind(options: Options, scene: Scene, made: Plan) -> Plan:
    """Add CPUs and memory; on a machine with one node there is nothing to choose."""
    unknown = [one for one in made.devices if one.gpu.place.node is None and len(scene.machine) > 1]
    if unknown:
        names = ", ".join(str(one) for one in unknown)
        reason = unknown[0].gpu.place.source
        return replace(made, notes=(*made.notes, f"{names}: NUMA node not known ({reason}), so nothing is bound"))
    if sum(bool(node.cpus) for node in scene.machine) < 2:
        return made
    gpus = [one.gpu for one in made.devices]
    return _memory(options, scene, _cpus(scene, made, gpus), gpus)


def _cpus(scene: Scene, made: Plan, gpus: Sequence[Gpu]) -> Plan:
    nodes = {node.number: node for node in scene.machine}
    near: set[int] = set()
    for gpu in gpus:
        of_node = set(nodes[gpu.place.node].cpus) if gpu.place.node in nodes else set()
        near |= (of_node & set(gpu.cpus)) or of_node
    allowed = near & set(scene.cpus)
    if allowed:
        return replace(made, cpus=tuple(sorted(allowed)))
    names = f"{_topology.format_cpus(near)} near the GPU, {_topology.format_cpus(scene.cpus)} allowed"
    return replace(made, notes=(*made.notes, f"no CPU near the GPU may be used ({names}), so CPUs stay as they are"))


def _memory(options: Options, scene: Scene, made: Plan, gpus: Sequence[Gpu]) -> Plan:
    """Choose the nodes of memory; several are left to the place of the CPUs unless strict."""
    wanted = sorted({gpu.place.node for gpu in gpus if gpu.place.node is not None})
    found = [_with_memory(scene, number) for number in wanted]
    usable = tuple(sorted({number for number in found if number is not None}))
    notes = list(made.notes)
    for number, other in zip(wanted, found):
        if other != number:
            instead = "it stays unbound" if other is None else f"node {other} stands in"
            notes.append(f"node {number}: has no memory that this process may use, so {instead}")
    if not usable or None in found:
        return replace(made, notes=tuple(notes))
    if scene.unbindable is not None:
        return replace(made, notes=(*notes, f"memory is not bound: {scene.unbindable}"))
    mode = "strict" if options.strict else "preferred" if len(usable) == 1 else "local"
    return replace(made, nodes=usable, memory=mode, notes=tuple(notes))


def _with_memory(scene: Scene, number: int) -> int | None:
    """Return the node itself or the nearest with CPUs and memory that we may use; GPU memory never stands in."""
    nodes = {node.number: node for node in scene.machine}
    if _usable(scene, nodes[number]):
        return number
    near = sorted(
        (far, other) for other, far in nodes[number].distances if nodes[other].cpus and _usable(scene, nodes[other])
    )
    return near[0][1] if near else None


def _usable(scene: Scene, node: Node) -> bool:
    return node.memory != 0 and node.number in scene.memory

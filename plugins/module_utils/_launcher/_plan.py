# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan where a command runs: pure, from the options and the scene to CPUs, memory, environment and lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _defaults, _devices
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._defaults import Defaults
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Device, Gpu, Memory, Plan, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._options import Options
from ansible_collections.gpu_fleet.node.plugins.module_utils._topology import Node

NEAREST = "nearest node with CPUs"  # in the source of a place that stands for another
NO_GPU = "no GPU is here for this process, so the command runs unbound"


def plan(options: Options, defaults: Defaults, scene: Scene) -> Plan:
    """Return the plan."""
    devices, amiss = _devices.given(scene)
    if options.gpus:
        devices = _devices.choose(scene, options.gpus, devices)
    near, without = _of_rank(scene, devices)
    made = Plan(near, obstacles=(*scene.obstacles, *_missing(scene), *amiss, *without))
    made = _environment(options, defaults, scene, replace(made, devices=near if options.isolate else devices))
    made = replace(made, devices=near, remarks=_parts(near))
    if not near:
        return made if amiss or without else replace(made, obstacles=(*made.obstacles, NO_GPU))
    return _bind(options, scene, made)


def _of_rank(scene: Scene, devices: tuple[Device, ...]) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the device of the local rank; a list of one is already that of the rank."""
    rank = _devices.rank(scene.environment)
    if rank is None or len(devices) < 2:
        return devices, ()
    if rank < len(devices):
        return (devices[rank],), ()
    return (), (f"local rank {rank}: has no GPU of its own among {len(devices)}, so the command runs unbound",)


def _parts(devices: Sequence[Device]) -> tuple[str, ...]:
    parts = [one for one in devices if one.instance]
    return tuple(f"{one.uuid}: is a part of GPU {one.gpu.index}, whose place counts" for one in parts)


def _present(defaults: Defaults, scene: Scene) -> dict[str, str]:
    """Return the administrator's variables; of a preload only what is here, or every program would get a line."""
    kept = " ".join(word for word in _defaults.preloads(defaults) if word not in scene.gone)
    others = {name: value for name, value in defaults.environment.items() if name != _defaults.PRELOAD}
    return {**others, _defaults.PRELOAD: kept} if kept else others


def _missing(scene: Scene) -> tuple[str, ...]:
    if _defaults.PRELOAD in scene.environment:
        return ()
    return tuple(f"{path}: is not here, so it is not preloaded" for path in scene.gone)


def _environment(options: Options, defaults: Defaults, scene: Scene, made: Plan) -> Plan:
    """Set the administrator's variables that the caller has not set, and the device list where it is ours to set."""
    wanted = {name: value for name, value in _present(defaults, scene).items() if name not in scene.environment}
    if not (options.gpus or options.isolate) or not made.devices:
        return replace(made, environment=wanted)
    if all(one.uuid for one in made.devices):
        wanted[_devices.LIST] = ",".join(str(one.uuid) for one in made.devices)
        return replace(made, environment=wanted)
    wanted[_devices.LIST] = ",".join(str(one.gpu.index) for one in made.devices)
    wanted["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    line = f"no UUID is known, so {_devices.LIST} has indexes in the order of the bus"
    return replace(made, environment=wanted, obstacles=(*made.obstacles, line))


def _bind(options: Options, scene: Scene, made: Plan) -> Plan:
    """Add CPUs and memory; on a machine with one node there is nothing to choose."""
    if len(scene.machine) < 2:
        return made
    unknown = [one for one in made.devices if one.gpu.place.node is None]
    if unknown:
        names = ", ".join(map(str, unknown))
        line = f"{names}: NUMA node not known ({unknown[0].gpu.place.source}), so the command runs unbound"
        return replace(made, obstacles=(*made.obstacles, line))
    gpus = [one.gpu for one in made.devices]
    made = replace(made, remarks=(*made.remarks, *_moved(gpus)))
    return _memory(options, scene, _cpus(scene, made, gpus), gpus)


def _moved(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    moved = [gpu for gpu in gpus if NEAREST in gpu.place.source]
    return tuple(
        f"GPU {gpu.index}: is on a node without CPUs, so the nearest with some, node {gpu.place.node}, counts"
        for gpu in moved
    )


def _cpus(scene: Scene, made: Plan, gpus: Sequence[Gpu]) -> Plan:
    """Choose the allowed CPUs of the nodes of all GPUs."""
    nodes = {node.number: node for node in scene.machine}
    near: set[int] = set()
    for gpu in gpus:
        of_node = set(nodes[gpu.place.node].cpus) if gpu.place.node in nodes else set()
        near |= (of_node & set(gpu.cpus)) or of_node
    allowed = near & set(scene.cpus)
    if allowed:
        return replace(made, cpus=tuple(sorted(allowed)))
    names = f"{_topology.format_cpus(near) or 'none'} near the GPU, {_topology.format_cpus(scene.cpus)} allowed"
    line = f"no CPU near the GPU may be used ({names}), so CPUs stay as they are"
    return replace(made, obstacles=(*made.obstacles, line))


def _memory(options: Options, scene: Scene, made: Plan, gpus: Sequence[Gpu]) -> Plan:
    """Choose the nodes of memory; several are left to the place of the CPUs unless strict."""
    wanted = sorted({gpu.place.node for gpu in gpus if gpu.place.node is not None})
    found = [_with_memory(scene, number) for number in wanted]
    usable = tuple(sorted({number for number in found if number is not None}))
    lines = [_elsewhere(number, other) for number, other in zip(wanted, found) if other != number]
    made = replace(made, obstacles=(*made.obstacles, *lines))
    if not usable or None in found:
        return made
    if scene.unbindable is not None:
        line = f"memory is not bound: {scene.unbindable}"
        return replace(made, obstacles=(*made.obstacles, line))
    mode: Memory = "strict" if options.strict else "preferred" if len(usable) == 1 else "local"
    return replace(made, nodes=usable, memory=mode, remarks=(*made.remarks, *_several(gpus, mode)))


def _elsewhere(number: int, other: int | None) -> str:
    instead = "memory is not bound" if other is None else f"node {other} stands in"
    return f"node {number}: has no memory that this process may use, so {instead}"


def _several(gpus: Sequence[Gpu], mode: Memory) -> tuple[str, ...]:
    nodes = sorted({gpu.place.node for gpu in gpus if gpu.place.node is not None})
    if len(nodes) < 2:
        return ()
    memory = "bound to these nodes" if mode == "strict" else "near the CPU that asks for it"
    return (f"the GPUs are on nodes {_topology.format_cpus(nodes)}: the CPUs of all of them, and memory {memory}",)


def _with_memory(scene: Scene, number: int) -> int | None:
    """Return the node itself or the nearest with CPUs and memory that we may use; GPU memory never stands in."""
    nodes = {node.number: node for node in scene.machine}
    if number in nodes and _usable(scene, nodes[number]):
        return number
    distances = nodes[number].distances if number in nodes else ()
    near = sorted((far, other) for other, far in distances if nodes[other].cpus and _usable(scene, nodes[other]))
    return near[0][1] if near else None


def _usable(scene: Scene, node: Node) -> bool:
    return node.memory != 0 and node.number in scene.memory

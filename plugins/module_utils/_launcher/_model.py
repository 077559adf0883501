# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu-run knows of the host, and what it is going to do, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._topology import Node, Place


@dataclass(frozen=True)
class Gpu:
    """One GPU in the order of the PCI addresses, which is the order of nvidia-smi."""

    index: int
    address: str
    uuid: str | None
    place: Place
    cpus: tuple[int, ...]  # near to it
    nvidia: bool = True


@dataclass(frozen=True)
class Scene:
    """The host as this process finds it."""

    gpus: tuple[Gpu, ...]
    machine: tuple[Node, ...]
    cpus: tuple[int, ...]  # that this process may use
    memory: tuple[int, ...]  # nodes whose memory it may use
    environment: Mapping[str, str]
    instances: Mapping[str, str] = field(default_factory=dict)  # MIG UUID -> address of its GPU
    unbindable: str | None = None  # why memory cannot be bound here
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """What a program can be shown: a GPU or a MIG instance of one."""

    gpu: Gpu
    uuid: str | None

    def __str__(self) -> str:
        """Name it in a message."""
        return f"GPU {self.gpu.index} ({self.uuid or self.gpu.address})"


@dataclass(frozen=True)
class Plan:
    """What becomes of the command."""

    devices: tuple[Device, ...] = ()
    cpus: tuple[int, ...] = ()  # empty: as they are
    nodes: tuple[int, ...] = ()  # of memory
    memory: str = "unbound"  # unbound, local, preferred, strict
    environment: Mapping[str, str] = field(default_factory=dict)  # to set
    notes: tuple[str, ...] = ()  # what is amiss, a line each

    def show(self) -> dict[str, Any]:
        """Return the plan for people and programs."""
        gpus = [
            {
                "index": one.gpu.index,
                "bus_id": one.gpu.address,
                "uuid": one.uuid,
                "numa_node": one.gpu.place.node,
                "source": one.gpu.place.source,
            }
            for one in self.devices
        ]
        memory = {"mode": self.memory, "nodes": _topology.format_cpus(self.nodes) or None}
        return {
            "gpus": gpus,
            "cpus": _topology.format_cpus(self.cpus) or None,
            "memory": memory,
            "environment": dict(sorted(self.environment.items())),
            "notes": list(self.notes),
        }

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpu-run knows of the host, and what it is going to do, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._topology import Node, Place

Memory = Literal["unbound", "local", "preferred", "strict"]


class RefusalError(Exception):
    """One sentence on stderr, and the exit status; the command is not started."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        """Stop with a sentence."""
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU that this process may open, in the order of the PCI addresses, which is that of nvidia-smi."""

    index: int
    address: str
    uuid: str | None
    place: Place
    cpus: tuple[int, ...] = ()  # near to it, as the kernel says


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
    gone: tuple[str, ...] = ()  # libraries that the defaults preload and that are not here any more
    obstacles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Device:
    """What a program can be shown: a GPU or a MIG instance of one."""

    gpu: Gpu
    uuid: str | None

    @property
    def instance(self) -> bool:
        """Tell whether it is a part of a GPU."""
        return self.uuid != self.gpu.uuid

    def __str__(self) -> str:
        """Name it in a message."""
        return f"GPU {self.gpu.index} ({self.uuid or self.gpu.address})"


@dataclass(frozen=True)
class Plan:
    """What becomes of the command."""

    devices: tuple[Device, ...] = ()
    cpus: tuple[int, ...] = ()  # empty: as they are
    nodes: tuple[int, ...] = ()  # of memory
    memory: Memory = "unbound"
    environment: Mapping[str, str] = field(default_factory=dict)  # to set
    obstacles: tuple[str, ...] = ()  # what is not as it was asked for, a line each: strict stops there
    remarks: tuple[str, ...] = ()  # what one should know

    def show(self) -> dict[str, Any]:
        """Return the plan for people and programs."""
        memory = {"mode": self.memory, "nodes": _topology.format_cpus(self.nodes) or None}
        return {
            "gpus": [_show_device(one) for one in self.devices],
            "cpus": _topology.format_cpus(self.cpus) or None,
            "memory": memory,
            "environment": dict(sorted(self.environment.items())),
            "obstacles": list(self.obstacles),
            "remarks": list(self.remarks),
        }


def _show_device(device: Device) -> dict[str, Any]:
    gpu = device.gpu
    place = {"numa_node": gpu.place.node, "source": gpu.place.source}
    return {"index": gpu.index, "bus_id": gpu.address, "uuid": device.uuid, **place}

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things sit in a machine: NUMA nodes, lists of CPUs, PCI addresses, and the node that a device belongs to.

It stands on the standard library alone, so that the launcher can carry it; what it reads below `root` is sysfs only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NODES = "/sys/devices/system/node"
DEVICES = "/sys/bus/pci/devices"
NVIDIA, AMD = "10de", "1002"
GPU_CLASSES = ("0300", "0302", "0380", "1200")  # VGA, 3D, display, processing accelerator
BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.IGNORECASE)
MEMORY = re.compile(r"MemTotal:\s+(\d+) kB")


@dataclass(frozen=True)
class Node:
    """One NUMA node; a node without CPUs is memory alone (HBM, a GPU's memory, CXL)."""

    number: int
    cpus: tuple[int, ...]
    memory: int | None  # bytes; None where the kernel does not say
    distances: tuple[tuple[int, int], ...]  # node and distance, for each node the kernel lists


@dataclass(frozen=True)
class Device:
    """One PCI function."""

    address: str
    vendor: str  # four hexadecimal digits
    kind: str  # class and subclass, four hexadecimal digits
    driver: str | None  # None where no kernel driver is bound
    node: int | None  # None where the kernel says -1 or nothing
    cpus: tuple[int, ...]  # near to it; all of them where the kernel does not know better
    branch: tuple[str, ...]  # the way down from the root complex: pci0000:00, bridge, ..., itself


@dataclass(frozen=True)
class Place:
    """The node of a device and who says so; `node` is None with the reason in `source`."""

    node: int | None
    source: str


def bus_id(spelling: str | bytes | None) -> str | None:
    """Return the one spelling of a PCI address, that of sysfs (`0000:3b:00.0`); None for what is no address."""
    words = spelling.decode("ascii", "replace") if isinstance(spelling, bytes) else spelling or ""
    found = BUS_ID.fullmatch(words.strip())
    if found is None:
        return None
    domain, bus, device = (int(part or "0", 16) for part in found.group(1, 2, 3))
    return f"{domain:04x}:{bus:02x}:{device:02x}.{found[4] or '0'}"


def parse_cpus(spelling: str | None) -> tuple[int, ...]:
    """Read a kernel list of numbers (`0-3,8`); strides (`0-31:2/4`) do not occur in what the kernel prints."""
    found: set[int] = set()
    for part in re.split(r"[,\s]+", (spelling or "").strip()):
        first, _dash, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or "-" not in part):
            found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def format_cpus(numbers: Iterable[int]) -> str:
    """Write numbers the way the kernel does (`0-3,8`)."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def nodes(root: str = "/") -> tuple[Node, ...]:
    """Return the NUMA nodes; none where the kernel has no NUMA at all."""
    listed = (re.fullmatch(r"node(\d+)", name) for name in _names(root, NODES))
    numbers = sorted(int(found[1]) for found in listed if found)
    return tuple(_node(root, number, numbers) for number in numbers)


def _node(root: str, number: int, numbers: list[int]) -> Node:
    folder = f"{NODES}/node{number}"
    memory = MEMORY.search(_text(root, f"{folder}/meminfo"))
    distances = [int(word) for word in _text(root, f"{folder}/distance").split() if word.isdigit()]
    return Node(
        number,
        parse_cpus(_text(root, f"{folder}/cpulist")),
        int(memory[1]) * 1024 if memory else None,
        tuple(zip(numbers, distances)) if len(distances) == len(numbers) else (),
    )


def devices(root: str, kinds: Sequence[str], vendors: Sequence[str] = ()) -> tuple[Device, ...]:
    """Return the PCI functions of these classes (and makers), in the order of their addresses."""
    found = []
    for name in _names(root, DEVICES):
        address, folder = bus_id(name), f"{DEVICES}/{name}"
        kind = _text(root, f"{folder}/class")[2:6].lower()
        if address is None or kind not in kinds:
            continue
        vendor = _text(root, f"{folder}/vendor")[2:].lower()
        if not vendors or vendor in vendors:
            found.append(_device(root, folder, Device(address, vendor, kind, None, None, (), ())))
    return tuple(sorted(found, key=lambda device: device.address))


def gpus(root: str = "/") -> tuple[Device, ...]:
    """Return the GPUs that PCI shows, with or without a driver."""
    return devices(root, GPU_CLASSES, (NVIDIA, AMD))


def _device(root: str, folder: str, bare: Device) -> Device:
    node = _text(root, f"{folder}/numa_node")
    way = _target(root, folder).split("/")
    return Device(
        bare.address,
        bare.vendor,
        bare.kind,
        os.path.basename(_target(root, f"{folder}/driver")) or None,
        int(node) if node.isdigit() else None,
        parse_cpus(_text(root, f"{folder}/local_cpulist")),
        tuple(part for part in way if part.startswith("pci") or bus_id(part)),
    )


def nearest_with_cpus(machine: Sequence[Node], number: int) -> int | None:
    """Return the node with CPUs that is nearest to a node; None where the distances do not say, or two are as near."""
    by_number = {node.number: node for node in machine}
    if number not in by_number:
        return None
    if by_number[number].cpus:
        return number
    near = sorted((far, other) for other, far in by_number[number].distances if by_number[other].cpus)
    if not near or (len(near) > 1 and near[0][0] == near[1][0]):
        return None
    return near[0][1]


def place(machine: Sequence[Node], claims: Iterable[tuple[str, int | None]]) -> Place:
    """Return the node for a device's CPUs and memory.

    `claims` are the answers of sources, best first: the source and its node, None or negative where it does not know.
    A claim on a node without CPUs stands for the nearest node that has some. A machine with one node has one answer.
    """
    for source, number in claims:
        if number is None or number < 0:
            continue
        near = nearest_with_cpus(machine, number) if machine else number
        if near is not None:
            return Place(near, source if near == number else f"{source}, nearest node with CPUs")
    usable = [node.number for node in machine if node.cpus]
    if len(usable) == 1:
        return Place(usable[0], "only node")
    return Place(None, "no source knows the node" if machine else "this kernel has no NUMA nodes")


def single_node(machine: Sequence[Node], cpus: Sequence[int]) -> int | None:
    """Return the one node that holds all of these CPUs, on a machine where there is a choice; else None."""
    holders = [node.number for node in machine if set(cpus) & set(node.cpus)]
    several = sum(bool(node.cpus) for node in machine) > 1
    return holders[0] if several and len(holders) == 1 else None


def nearness(one: Sequence[str], other: Sequence[str], same_node: bool | None) -> str:
    """Say how near two PCI devices are by their branches, in the words of `nvidia-smi topo`: PIX is the nearest."""
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    bridges = len(one) - 1 - shared + len(other) - 1 - shared
    if shared > 1:
        return "PIX" if bridges <= 2 else "PXB"
    if shared == 1:
        return "PHB"
    return {True: "NODE", False: "SYS", None: "unknown"}[same_node]


def _text(root: str, path: str) -> str:
    """Return the text of an attribute; nothing where there is none, or the device does not answer."""
    try:
        with open(root.rstrip("/") + path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def _names(root: str, path: str) -> list[str]:
    try:
        return os.listdir(root.rstrip("/") + path)
    except OSError:
        return []


def _target(root: str, path: str) -> str:
    try:
        return os.readlink(root.rstrip("/") + path)
    except OSError:
        return ""

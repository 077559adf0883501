# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs and network adapters as the kernel alone shows them: sysfs and /proc/driver/nvidia, without any tool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import Figure, absent, pack, unpack, word
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

NETWORK_CLASSES = ("0200", "0207")  # Ethernet, InfiniBand
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
WIDEST = 32  # 255 is what the kernel reads from a device that has fallen off the bus; 0 is no link (a VM)
PASSED_ON = ("vfio-pci", "pci-stub", "xen-pciback")  # the card belongs to a virtual machine
FIGURES = ("pci_id", "memory.total", "pcie.generation", "pcie.generation_max", "pcie.width", "pcie.width_max")
HUNG = "not asked while a driver call of an earlier run hangs"
PROC = "/proc/driver/nvidia"
MODULE_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
INFORMATION = re.compile(r"^([^:\n]+):[ \t]*(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Card:
    """One GPU."""

    where: _topology.Device
    reading: Mapping[str, Figure] = field(default_factory=dict)
    excluded: bool = False
    known_to_driver: bool = False  # the driver has taken it and this system (or container) may open it

    @property
    def passed_on(self) -> bool:
        """Tell whether the card was handed to a virtual machine."""
        return self.where.driver in PASSED_ON


@dataclass(frozen=True)
class Adapter:
    """One network adapter with the names of its interfaces and RDMA devices."""

    where: _topology.Device
    names: tuple[str, ...]


@dataclass(frozen=True)
class Driver:
    """The kernel module that is loaded; `version` None where there is none."""

    version: str | None
    kind: str | None  # open or proprietary; None where nothing tells


def driver(host: Host) -> Driver:
    """Return the loaded NVIDIA kernel module, as the driver itself says."""
    text = _read.text(host, f"{PROC}/version") or ""
    found = MODULE_VERSION.search(text)
    if found:
        return Driver(found[1], "open" if "Open Kernel Module" in text else "proprietary")
    return module(host)


def module(host: Host) -> Driver:
    """Return the loaded NVIDIA kernel module, as the kernel says without asking the driver."""
    return Driver(_read.text(host, "/sys/module/nvidia/version"), None)


def cards(host: Host) -> list[Card]:
    """Return the GPUs of both makers, in the order of their addresses."""
    told = {_topology.bus_id(name): name for name in _read.names(host, f"{PROC}/gpus")}
    return [_card(host, device, told.get(device.address)) for device in _topology.gpus(host.root)]


def bare_cards(host: Host) -> list[Card]:
    """Return the GPUs with what the kernel knows by heart, where neither cards nor driver may be asked."""
    return [
        Card(device, {**dict.fromkeys(FIGURES, absent(HUNG)), **_known(device)}) for device in _topology.gpus(host.root)
    ]


def adapters(host: Host) -> list[Adapter]:
    """Return the network adapters; virtual functions, made to be handed to virtual machines, are left out."""
    return [
        Adapter(device, _interfaces(host, f"{_topology.DEVICES}/{device.address}"))
        for device in _topology.devices(host.root, NETWORK_CLASSES)
        if host.target(f"{_topology.DEVICES}/{device.address}/physfn") is None
    ]


def pack_device(found: Card | Adapter) -> dict[str, Any]:
    """Turn a card or an adapter into what JSON carries from a child to its parent."""
    packed = {**vars(found), "where": vars(found.where)}
    return {**packed, "reading": pack(found.reading)} if isinstance(found, Card) else packed


def unpack_device(packed: Mapping[str, Any]) -> dict[str, Any]:
    """Take the fields of a card or an adapter back from what a child sent."""
    lists = {key: tuple(packed["where"][key]) for key in ("cpus", "branch")}
    fields = {**packed, "where": _topology.Device(**{**packed["where"], **lists})}
    if "reading" in packed:
        return {**fields, "reading": unpack(packed["reading"])}
    return {**fields, "names": tuple(packed["names"])}


def _interfaces(host: Host, folder: str) -> tuple[str, ...]:
    virtual = [f"{folder}/{name}" for name in _read.names(host, folder) if name.startswith("virtio")]
    names = [name for place in (folder, *virtual) for name in _read.names(host, f"{place}/net")]
    return (*names, *_read.names(host, f"{folder}/infiniband"))


def _card(host: Host, device: _topology.Device, known_as: str | None) -> Card:
    reading = _figures(host, device)
    if device.vendor == _topology.AMD:
        size = _read.number(host, f"{_topology.DEVICES}/{device.address}/mem_info_vram_total")
        return Card(device, {**reading, "memory.total": Figure(size) if size else absent("sysfs does not say")})
    text = _read.text(host, f"{PROC}/gpus/{known_as}/information") if known_as else None
    information = {key.strip(): value.strip() for key, value in INFORMATION.findall(text or "")}
    minor = word(information.get("Device Minor")).value
    return Card(
        device,
        {**reading, **_driver_figures(information)},
        information.get("GPU Excluded") == "Yes",
        bool(information) and (minor is None or host.mode(f"/dev/nvidia{minor}") is not None),
    )


def _figures(host: Host, device: _topology.Device) -> dict[str, Figure]:
    folder = f"{_topology.DEVICES}/{device.address}"
    model = (_read.text(host, f"{folder}/device") or "")[2:]
    return {
        **_known(device),
        "pci_id": Figure(f"{device.vendor}:{model}") if model else absent("sysfs does not say"),
        "pcie.generation": _generation(host, f"{folder}/current_link_speed"),
        "pcie.generation_max": _generation(host, f"{folder}/max_link_speed"),
        "pcie.width": _width(host, f"{folder}/current_link_width"),
        "pcie.width_max": _width(host, f"{folder}/max_link_width"),
    }


def _known(device: _topology.Device) -> dict[str, Figure]:
    cpus = _topology.format_cpus(device.cpus)
    return {
        "kernel_driver": Figure(device.driver) if device.driver else absent("no driver is bound"),
        "local_cpus": Figure(cpus) if cpus else absent("sysfs does not say"),
    }


def _driver_figures(information: Mapping[str, str]) -> dict[str, Figure]:
    if not information:
        return {}
    minor = word(information.get("Device Minor")).value or ""
    # Where the driver has not started the card, the UUID is a row of question marks.
    unknown = "?" in information.get("GPU UUID", "?")
    return {
        "name": word(information.get("Model")),
        "uuid": absent("the driver has not started it") if unknown else word(information["GPU UUID"]),
        "minor_number": Figure(int(minor)) if minor.isdigit() else absent("not reported"),
    }


def _generation(host: Host, path: str) -> Figure:
    """Read a link speed (`32.0 GT/s PCIe`, older kernels `8 GT/s`)."""
    speed = (_read.text(host, path) or "").split(" ")[0]
    known = GENERATIONS.get(speed if "." in speed else f"{speed}.0")
    return Figure(known) if known else absent("the link speed is unknown")


def _width(host: Host, path: str) -> Figure:
    width = _read.number(host, path)
    return Figure(width) if width and width <= WIDEST else absent("the link width is unknown")

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs and network adapters as the kernel alone shows them: sysfs and /proc/driver/nvidia, without any tool."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import Figure, absent, word
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

NVIDIA, AMD = "10de", "1002"
GPU_CLASSES = ("0300", "0302", "0380", "1200")  # VGA, 3D, display, processing accelerator
NETWORK_CLASSES = ("0200", "0207")  # Ethernet, InfiniBand
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
PROC = "/proc/driver/nvidia"
MODULE_VERSION = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
INFORMATION = re.compile(r"^([^:\n]+):[ \t]*(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Device:
    """One PCI function that matters here."""

    address: str
    vendor: str
    numa_node: int | None  # None where the kernel says -1 or nothing
    branch: tuple[str, ...]
    reading: dict[str, Figure] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # network interfaces and RDMA devices
    excluded: bool = False
    known_to_driver: bool = False  # the driver has taken it and this system (or container) may open it
    vram: int | None = None


@dataclass(frozen=True)
class Driver:
    """The kernel module that is loaded; `version` None where there is none."""

    version: str | None
    kind: str | None  # open or proprietary; None where no driver is loaded


def driver(host: Host) -> Driver:
    """Return the loaded NVIDIA kernel module."""
    text = _read.text(host, f"{PROC}/version") or ""
    found = MODULE_VERSION.search(text)
    if found:
        return Driver(found[1], "open" if "Open Kernel Module" in text else "proprietary")
    return Driver(_read.text(host, "/sys/module/nvidia/version"), None)


def devices(host: Host, wanted: tuple[str, ...]) -> list[Device]:
    """Return the GPUs of both makers, or the network adapters, in the order of their addresses."""
    found = []
    for name in _read.names(host, _topology.DEVICES):
        address = _topology.bus_id(name)
        if address is None:
            continue
        folder = f"{_topology.DEVICES}/{name}"
        kind = (_read.text(host, f"{folder}/class") or "")[2:6]
        vendor = (_read.text(host, f"{folder}/vendor") or "")[2:]
        if kind in wanted and (wanted is NETWORK_CLASSES or vendor in (NVIDIA, AMD)):
            found.append(_device(host, name, address, vendor))
    return found


def _device(host: Host, name: str, address: str, vendor: str) -> Device:
    folder = f"{_topology.DEVICES}/{name}"
    node = _read.number(host, f"{folder}/numa_node")
    information = _information(host, address) if vendor == NVIDIA else {}
    minor = word(information.get("Device Minor"))
    return Device(
        address,
        vendor,
        node if node is not None and node >= 0 else None,
        _topology.branch(host, name),
        {**_figures(host, folder), **_driver_figures(information)},
        tuple(_read.names(host, f"{folder}/net") + _read.names(host, f"{folder}/infiniband")),
        information.get("GPU Excluded") == "Yes",
        bool(information) and (minor.value is None or host.mode(f"/dev/nvidia{minor.value}") is not None),
        _read.number(host, f"{folder}/mem_info_vram_total"),
    )


def _figures(host: Host, folder: str) -> dict[str, Figure]:
    vendor, model = (_read.text(host, f"{folder}/{key}") or "" for key in ("vendor", "device"))
    link = host.target(f"{folder}/driver")
    cpus = _topology.format_cpus(_topology.parse_cpus(_read.text(host, f"{folder}/local_cpulist")))
    return {
        "pci_id": Figure(f"{vendor[2:]}:{model[2:]}") if vendor and model else absent("sysfs does not say"),
        "kernel_driver": Figure(link.rpartition("/")[2]) if link else absent("no driver is bound"),
        "local_cpus": Figure(cpus) if cpus else absent("sysfs does not say"),
        "pcie.generation": _generation(host, f"{folder}/current_link_speed"),
        "pcie.generation_max": _generation(host, f"{folder}/max_link_speed"),
        "pcie.width": _width(host, f"{folder}/current_link_width"),
        "pcie.width_max": _width(host, f"{folder}/max_link_width"),
    }


def _driver_figures(information: dict[str, str]) -> dict[str, Figure]:
    if not information:
        return {}
    minor = word(information.get("Device Minor"))
    return {
        "name": word(information.get("Model")),
        # Where the driver has not started the card, the UUID is a row of question marks.
        "uuid": absent("not started") if "?" in information.get("GPU UUID", "?") else word(information["GPU UUID"]),
        "minor_number": Figure(int(minor.value)) if (minor.value or "").isdigit() else absent("not reported"),
    }


def _information(host: Host, address: str) -> dict[str, str]:
    text = _read.text(host, f"{PROC}/gpus/{address}/information") or ""
    return {key.strip(): value.strip() for key, value in INFORMATION.findall(text)}


def _generation(host: Host, path: str) -> Figure:
    """Read a link speed (`32.0 GT/s PCIe`, older kernels `8 GT/s`)."""
    speed = (_read.text(host, path) or "").split(" ")[0]
    known = GENERATIONS.get(speed if "." in speed else f"{speed}.0")
    return Figure(known) if known else absent("the link speed is unknown")


def _width(host: Host, path: str) -> Figure:
    width = _read.number(host, path)
    # 255 is what the kernel reads from a device that has fallen off the bus; 0 is a link that is not there (a VM).
    return Figure(width) if width and width <= 32 else absent("the link width is unknown")

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host as the kernel and the driver show it, as folders; and programs that stand in for others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def uuid(number: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{number}0000000-0000-0000-0000-000000000000"


def put(root: Path, files: Mapping[str, str]) -> None:
    """Write files below a root."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")


def build(root: Path, machine: Mapping[str, Any]) -> list[str]:
    """Write the nodes and GPUs of a machine; return the addresses of the GPUs."""
    for number, node in machine["nodes"].items():
        folder = f"sys/devices/system/node/node{number}"
        distances = node.get("distances") or [10 if other == number else 21 for other in machine["nodes"]]
        memory = f"Node {number} MemTotal: {node.get('memory', 1024) * 1024} kB"
        files = {"cpulist": node["cpus"], "distance": " ".join(map(str, distances)), "meminfo": memory}
        put(root, {f"{folder}/{name}": text for name, text in files.items()})
    addresses = []
    for number, gpu in enumerate(machine["gpus"]):
        addresses.append(gpu.get("address", f"0000:{number}0:00.0"))
        _plug(root, machine, number, {**gpu, "address": addresses[-1]})
    return addresses


def _plug(root: Path, machine: Mapping[str, Any], number: int, gpu: Mapping[str, Any]) -> None:
    address = gpu["address"]
    cpus = gpu.get("cpus") or machine["nodes"].get(gpu["node"], {"cpus": ""})["cpus"]
    if gpu.get("in_sysfs", True):
        files = {"class": "0x030200", "vendor": "0x10de", "numa_node": str(gpu["node"]), "local_cpulist": cpus}
        put(root, {f"sys/bus/pci/devices/{address}/{name}": text for name, text in files.items()})
    if machine.get("driver", True):
        said = {"Model": "NVIDIA Test", "GPU UUID": gpu.get("uuid", uuid(number)), "Device Minor": str(number)}
        said["GPU Excluded"] = "Yes" if gpu.get("excluded") else "No"
        lines = "\n".join(f"{name}: \t {value}" for name, value in said.items())
        put(root, {f"proc/driver/nvidia/gpus/{address}/information": lines})
        if not gpu.get("withheld"):
            put(root, {f"dev/nvidia{number}": ""})


def stand_in(folder: Path, name: str, script: str) -> Path:
    """Write a shell script that stands in for a program."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / name
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)
    return place

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold measured bandwidth against a floor: the operator's, that of the GPU model, or that of the link."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._model import Gpus, Row, row

# Memory rate by data sheet, GB/s, and what NVLink carries one way where all cards of that name have it.
# The longest name wins.
MODELS: dict[str, tuple[float, float]] = {
    "GB200": (8000, 900),
    "B200": (8000, 900),
    "GH200": (4000, 0),
    "H200": (4800, 450),
    "H200 NVL": (4800, 0),
    "H100 80GB HBM3": (3350, 450),
    "H100 PCIe": (2000, 0),
    "H100 NVL": (3900, 0),
    "A100-SXM4-80GB": (2039, 300),
    "A100-SXM4-40GB": (1555, 300),
    "A100-PCIE-40GB": (1555, 0),
    "A100 80GB PCIe": (1935, 0),
    "L40S": (864, 0),
    "L4": (300, 0),
    "A10": (600, 0),
    "A30": (933, 0),
    "T4": (320, 0),
}
# What must be reached: of the data sheet's rate for a copy on the device (0.80 was seen), of the link for pinned
# (0.87 was seen) and pageable copies (0.14 was seen; it is the CPU that copies), of NVLink or the link
# between two GPUs.
SHARE = {"device_to_device": 0.7, "pinned": 0.8, "pageable": 0.05, "peer_nvlink": 0.7, "peer_link": 0.4}
ACTION = {
    "device_to_device": "drain the host: look at ECC and row-remap state, memory clock and throttle reasons of the GPU",
    "pinned": "look at the link (nvidia-smi -q, PCIe generation and width), IOMMU, the NUMA node of the process, "
    "power limits",
    "pageable": "look at CPU governor, NUMA node and memory channels of the host",
    "peer": "look at nvidia-smi topo -m, NVLink state, ACS and IOMMU",
}
FIGURE = re.compile(r"bandwidth\.gpu(?P<gpu>\d+)\.(?P<kind>\w+)$")


def judge(measurements: Sequence[Mapping[str, Any]], gpus: Gpus, own: Mapping[str, Any]) -> list[Row]:
    """Return a row for each bandwidth figure that has a floor, or should have one."""
    rows = []
    for figure in measurements:
        found = FIGURE.match(figure["name"])
        if not found or found["kind"].startswith("from_node"):
            continue
        floor, source = _floor(found["kind"], int(found["gpu"]), gpus, own)
        action = next(text for name, text in ACTION.items() if name in found["kind"])
        if floor is None:
            status, action = "unknown", f"set {_plain(found['kind'])} in validate_memory_floors"
        else:
            status = "pass" if figure["value"] >= floor else "fail"
        more = {"observed": figure["value"], "expected": floor, "unit": figure["unit"], "threshold_source": source}
        rows.append(row("bandwidth", figure["name"], status, **more, action="" if status == "pass" else action))
    return rows + _nodes(measurements)


def _plain(kind: str) -> str:
    return "peer" if kind.startswith("peer") else kind


def _floor(kind: str, index: int, gpus: Gpus, own: Mapping[str, Any]) -> tuple[float | None, str]:
    if own.get(_plain(kind)) is not None:
        return float(own[_plain(kind)]), "validate_memory_floors"
    name = gpus.names[index] if index < len(gpus.names) else ""
    link = gpus.links[index] if index < len(gpus.links) else 0.0
    rate, nvlink = model(name)
    if kind == "device_to_device":
        return (
            (round(rate * SHARE[kind], 1), f"table: {name}")
            if rate
            else (None, f"no floor is known for {name or 'this GPU'}")
        )
    if kind.startswith("peer") and nvlink:
        return round(nvlink * SHARE["peer_nvlink"], 1), f"table: {name}"
    share = SHARE["peer_link"] if kind.startswith("peer") else SHARE[kind.rsplit("_", 1)[1]]
    return (
        (round(link * share, 2), f"{share} of the link, {link} GB/s")
        if link
        else (None, "the link of the GPU is not known")
    )


def model(name: str) -> tuple[float, float]:
    """Return memory rate and NVLink rate of a model; zeros for one that is not known."""
    if name.endswith(" MIG"):  # a slice has a part of the rate, and which part its name does not say
        return 0.0, 0.0
    words = re.sub(r"^(NVIDIA|Tesla)\s+", "", name)
    known = [key for key in MODELS if re.search(rf"(^|[\s-]){re.escape(key)}($|[\s-])", words)]
    return MODELS[max(known, key=len)] if known else (0.0, 0.0)


def _nodes(measurements: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Warn where the host memory of one NUMA node is much slower than that of another."""
    groups: dict[str, list[tuple[float, str]]] = {}
    for figure in measurements:
        gpu, found, node = figure["name"].rpartition(".from_")
        if found:
            groups.setdefault(gpu, []).append((figure["value"], node))
    rows = []
    for gpu, values in groups.items():
        slow, fast = min(values), max(values)
        status = "warn" if slow[0] < 0.9 * fast[0] else "pass"
        action = f"bind the jobs of this GPU to {fast[1]} (gpu-run, numactl)" if status == "warn" else ""
        more = {
            "observed": slow[0],
            "expected": fast[0],
            "unit": "GB/s",
            "threshold_source": f"{slow[1]} against {fast[1]}",
        }
        rows.append(row("bandwidth", f"{gpu}.nodes", status, **more, action=action))
    return rows

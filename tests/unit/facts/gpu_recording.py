# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a real host said, as the tool's own words and as the answers of the library that say the same."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The fields of --query-gpu that stand in the document, and the library's values that stand there.
QUERIED = {
    "name": "product_name",
    "uuid": "uuid",
    "pci.bus_id": "pci/pci_bus_id",
    "persistence_mode": "persistence_mode",
    "compute_mode": "compute_mode",
    "mig.mode.current": "mig_mode/current_mig",
    "mig.mode.pending": "mig_mode/pending_mig",
    "ecc.mode.current": "ecc_mode/current_ecc",
    "ecc.mode.pending": "ecc_mode/pending_ecc",
    "retired_pages.single_bit_ecc.count": "retired_pages/multiple_single_bit_retirement/retired_count",
    "retired_pages.double_bit.count": "retired_pages/double_bit_retirement/retired_count",
    "retired_pages.pending": "retired_pages/pending_retirement",
    "pcie.link.gen.current": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "pcie.link.gen.max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
    "pcie.link.width.current": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "pcie.link.width.max": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "power.draw": "gpu_power_readings/average_power_draw",
    "enforced.power.limit": "gpu_power_readings/current_power_limit",
    "temperature.gpu": "temperature/gpu_temp",
    "temperature.memory": "temperature/memory_temp",
    "utilization.gpu": "utilization/gpu_util",
    "utilization.memory": "utilization/memory_util",
    **{f"memory.{part}": f"fb_memory_usage/{part}" for part in ("total", "used", "free", "reserved")},
    **{
        f"clocks.{when}.{name}": f"{group}/{tag}_clock"
        for when, group in (("current", "clocks"), ("max", "max_clocks"))
        for name, tag in (("graphics", "graphics"), ("sm", "sm"), ("memory", "mem"))
    },
}
ANSWERED = {
    "minor": "minor_number",
    "power": "gpu_power_readings/average_power_draw",
    "power_limit": "gpu_power_readings/current_power_limit",
    "pcie_generation": "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "pcie_generation_max": "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
    "pcie_width": "pci/pci_gpu_link_info/link_widths/current_link_width",
    "pcie_width_max": "pci/pci_gpu_link_info/link_widths/max_link_width",
    "pcie_replays": "pci/replay_counter",
    "temperature.0": "temperature/gpu_temp",
    "temperature_memory": "temperature/memory_temp",
    "utilization_gpu": "utilization/gpu_util",
    "utilization_memory": "utilization/memory_util",
    **{f"memory.{part}": f"fb_memory_usage/{part}" for part in ("total", "used", "reserved")},
    **{f"clock.{place}": f"clocks/{tag}_clock" for place, tag in enumerate(("graphics", "sm", "mem"))},
    **{f"clock_max.{place}": f"max_clocks/{tag}_clock" for place, tag in enumerate(("graphics", "sm", "mem"))},
}
SCALES = {"MiB": 1024 * 1024, "W": 1000}
LIKEWISE = {"uuid": "uuid", "name": "product_name", "bus_id": "pci/pci_bus_id"}


@dataclass(frozen=True)
class Recording:
    """One real host."""

    folder: Path

    def text(self, name: str) -> str:
        """Return one recorded output."""
        return (self.folder / name).read_text()

    def gpu(self) -> ET.Element:
        """Return its one GPU in the document."""
        found = ET.fromstring(self.text("nvidia-smi-q-x.xml")).find("gpu")
        assert found is not None
        return found

    def smi(self) -> dict[str, Any]:
        """Return the answers for the stand-in tool."""
        row = {
            field: (self.gpu().findtext(place) or "").removesuffix("x").removesuffix(" C")
            for field, place in QUERIED.items()
        }
        row.update({"index": "0", "compute_cap": "9.0", "driver_version": "580.159.04"})
        for kind in ("corrected", "uncorrected"):
            row.update({f"ecc.errors.{kind}.{span}.total": "0" for span in ("volatile", "aggregate")})
        return {
            "-q -x": {"out": self.text("nvidia-smi-q-x.xml")},
            "query": {"rows": [row]},
            "topo -m": {"out": self.text("topo-m.txt")},
            "nvlink --status": {"out": ""},
        }

    def nvml(self) -> dict[str, Any]:
        """Return the answers for the stand-in library."""
        gpu = self.gpu()
        data = {f"0.{key}": gpu.findtext(place) for key, place in LIKEWISE.items()}
        for key, place in ANSWERED.items():
            figure, _blank, unit = (gpu.findtext(place) or "").rstrip("x").partition(" ")
            data[f"0.{key}"] = str(round(float(figure) * SCALES.get(unit, 1)))
        data.update({"count": "1", "driver": "580.159.04", "library": "13.580.159.04", "cuda": "13000"})
        data.update({"0.architecture": "9", "0.compute_major": "9", "0.compute_minor": "0", "0.compute_mode": "0"})
        data.update({"0.persistence": "1", "0.throttle_reasons": "1", "0.compute": "0", "0.graphics": "0"})
        data.update({"0.mig_current": "0", "0.mig_pending": "0", "0.ecc_current": "1", "0.ecc_pending": "1"})
        data.update({f"0.ecc_{kind}.{span}": "0" for kind in ("corrected", "uncorrected") for span in (0, 1)})
        data.update({f"0.remapped.{place}": "0" for place in range(4)})
        data.update({"0.cpu_affinity": "0xffff", "0.memory_affinity": "1"})
        return data

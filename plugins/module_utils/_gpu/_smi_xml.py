# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read `nvidia-smi -q -x`, of any driver since the 400s: pure, text in and figures out."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import (
    Figure,
    absent,
    change,
    number,
    switch,
    total,
    unified,
    word,
)

LINK = "pci/pci_gpu_link_info"
RETIRED = "retired_pages"
# Where each figure stands; a newer place before an older one.
NUMBERS = {
    "minor_number": ("minor_number",),
    "memory.total": ("fb_memory_usage/total",),
    "memory.used": ("fb_memory_usage/used",),
    "memory.reserved": ("fb_memory_usage/reserved",),
    "memory.free": ("fb_memory_usage/free",),
    "row_remap.corrected": ("remapped_rows/remapped_row_corr",),
    "row_remap.uncorrected": ("remapped_rows/remapped_row_unc",),
    "retired_pages.single_bit": (f"{RETIRED}/multiple_single_bit_retirement/retired_count",),
    "retired_pages.double_bit": (f"{RETIRED}/double_bit_retirement/retired_count",),
    "pcie.generation": (f"{LINK}/pcie_gen/current_link_gen",),
    "pcie.generation_max": (f"{LINK}/pcie_gen/max_link_gen",),
    "pcie.width": (f"{LINK}/link_widths/current_link_width",),
    "pcie.width_max": (f"{LINK}/link_widths/max_link_width",),
    "pcie.replays": ("pci/replay_counter",),
    "clocks.graphics": ("clocks/graphics_clock",),
    "clocks.sm": ("clocks/sm_clock",),
    "clocks.memory": ("clocks/mem_clock",),
    "clocks.graphics_max": ("max_clocks/graphics_clock",),
    "clocks.sm_max": ("max_clocks/sm_clock",),
    "clocks.memory_max": ("max_clocks/mem_clock",),
    "power.draw": (
        "gpu_power_readings/average_power_draw",
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
    ),
    "power.limit": (
        "gpu_power_readings/current_power_limit",
        "power_readings/enforced_power_limit",
        "power_readings/power_limit",
    ),
    "temperature.gpu": ("temperature/gpu_temp",),
    "temperature.memory": ("temperature/memory_temp",),
    "utilization.gpu": ("utilization/gpu_util",),
    "utilization.memory": ("utilization/memory_util",),
}
SWITCHES = {
    "mig.enabled": ("mig_mode/current_mig",),
    "mig.pending": ("mig_mode/pending_mig",),
    "ecc.enabled": ("ecc_mode/current_ecc",),
    "ecc.pending": ("ecc_mode/pending_ecc",),
    "row_remap.pending": ("remapped_rows/remapped_row_pending",),
    "row_remap.failed": ("remapped_rows/remapped_row_failure",),
    "retired_pages.pending": (f"{RETIRED}/pending_retirement", f"{RETIRED}/pending_blacklist"),
    "persistence": ("persistence_mode",),
}
WORDS = {
    "name": ("product_name",),
    "uuid": ("uuid",),
    "architecture": ("product_architecture",),
    "addressing_mode": ("addressing_mode",),
    "compute_mode": ("compute_mode",),
}
# The tool writes warnings around it, such as "infoROM is corrupted" with exit status 14.
DOCUMENT = re.compile(r"<nvidia_smi_log>.*</nvidia_smi_log>", re.DOTALL)
REASON = re.compile(r"clocks_(?:event|throttle)_reason_(\w+)")


def parse(content: str) -> dict[str, Any] | None:
    """Return driver, CUDA version and GPUs (address and figures), or None for what is no such document."""
    found = DOCUMENT.search(content)
    if found is None:
        return None
    try:
        root = ET.fromstring(found[0])
    except ET.ParseError:
        return None
    cuda = word(root.findtext("cuda_version"))
    return {
        "driver": word(root.findtext("driver_version")).value,
        "cuda": cuda.value,
        "gpus": [(_topology.bus_id(gpu.get("id")), _figures(gpu)) for gpu in root.findall("gpu")],
    }


def _figures(gpu: ET.Element) -> dict[str, Figure]:
    """Return the figures of one GPU; one whose place is missing in this version is left out, to be asked for."""
    figures = {}
    for names, convert in ((NUMBERS, number), (SWITCHES, switch), (WORDS, word)):
        for name, places in names.items():
            content = _first(gpu, places)
            if content is not None:
                figures[name] = convert(content)
    figures.update(_counts(gpu))
    figures["mig.instances"] = Figure([_instance(one) for one in gpu.findall("mig_devices/mig_device")])
    if figures.get("mig.enabled", absent("")).value is None:
        figures["mig.instances"] = absent("MIG is not available")
    figures["throttle_reasons"] = _reasons(gpu)
    figures["processes"] = _processes(gpu)
    return figures


def _first(gpu: ET.Element, places: Iterable[str]) -> str | None:
    """Return the text of the first place that says something, else of the first that is there at all."""
    found = [text for text in (gpu.findtext(place) for place in places) if text is not None]
    return next((text for text in found if word(text).value is not None), found[0] if found else None)


def memory(figures: dict[str, Figure]) -> dict[str, Figure]:
    """Say how memory was counted: a driver that reports what it reserves keeps it out of the used part."""
    size = figures.get("memory.total", absent("not reported"))
    if size.value == 0:
        size = absent("the driver says 0")
        figures.update((f"memory.{part}", size) for part in ("total", "used", "reserved", "free"))
    name, addressing = (figures.get(key, absent("")).value for key in ("name", "addressing_mode"))
    apart = figures.get("memory.reserved", absent("")).value is not None
    if size.value is None:
        return {"memory.used_includes_reserved": size, "memory.unified": unified(name, addressing, size)}
    return {"memory.used_includes_reserved": Figure(not apart), "memory.unified": Figure(False)}


def _counts(gpu: ET.Element) -> dict[str, Figure]:
    """Add up ECC errors over the memories that a driver tells apart; older ones give one total."""
    found = {}
    for span in ("volatile", "aggregate"):
        places = gpu.findall(f"ecc_errors/{span}/*")
        counted = [one for one in places if one.tag.startswith(("sram_", "dram_")) and "threshold" not in one.tag]
        if counted:
            wrong = [number(one.text) for one in counted if "uncorrectable" in one.tag]
            right = [number(one.text) for one in counted if "uncorrectable" not in one.tag]
        else:
            wrong = [number(gpu.findtext(f"ecc_errors/{span}/double_bit/total"))]
            right = [number(gpu.findtext(f"ecc_errors/{span}/single_bit/total"))]
        found[f"ecc.{span}_corrected"], found[f"ecc.{span}_uncorrected"] = total(right), total(wrong)
    return found


def _instance(device: ET.Element) -> dict[str, Any]:
    return {
        "gpu_instance": number(device.findtext("gpu_instance_id")).value,
        "compute_instance": number(device.findtext("compute_instance_id")).value,
        "uuid": word(device.findtext("uuid")).value,
        "memory_total": number(device.findtext("fb_memory_usage/total")).value,
        "memory_used": number(device.findtext("fb_memory_usage/used")).value,
    }


def _reasons(gpu: ET.Element) -> Figure:
    listed = [one for tag in ("clocks_event_reasons", "clocks_throttle_reasons") for one in gpu.findall(f"{tag}/*")]
    states = {found[1]: switch(one.text) for one in listed if (found := REASON.fullmatch(one.tag))}
    if not any(state.value is not None for state in states.values()):
        return next(iter(states.values()), absent("not reported"))
    return Figure(sorted(name for name, state in states.items() if state.value))


def _processes(gpu: ET.Element) -> Figure:
    listing = gpu.find("processes")
    if listing is None:
        return absent("not reported")
    found = [_process(one) for one in listing.findall("process_info")]
    if not found and (listing.text or "").strip():
        said = word(listing.text)  # N/A under MIG without permission; "None" is an empty list
        return Figure([]) if (listing.text or "").strip() == "None" else absent(said.reason or str(said.value))
    return Figure(sorted((one for one in found if one["pid"] is not None), key=lambda one: one["pid"]))


def _process(listed: ET.Element) -> dict[str, Any]:
    kind = (listed.findtext("type") or "").strip()
    return {
        "pid": number(listed.findtext("pid")).value,
        "name": change(word(listed.findtext("process_name")), lambda name: name.rpartition("/")[2]).value,
        "kind": "graphics" if kind == "G" else "compute",
        "memory": number(listed.findtext("used_memory")).value,
    }

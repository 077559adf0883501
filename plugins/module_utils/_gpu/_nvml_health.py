# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a GPU is, in NVML's words: errors, links, clocks, power, load and processes."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._binding import Binding
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import Figure, absent, change, named

COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
THROTTLE_REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks_setting"),
)
MOST_LINKS = 36
NOT_AVAILABLE = 2**64 - 1
# Figures that need one call and no thought: name, function, further arguments.
PLAIN: tuple[tuple[str, str | tuple[str, ...], tuple[int, ...]], ...] = (
    ("minor_number", "nvmlDeviceGetMinorNumber", ()),
    ("ecc.volatile_corrected", "nvmlDeviceGetTotalEccErrors", (0, 0)),
    ("ecc.volatile_uncorrected", "nvmlDeviceGetTotalEccErrors", (1, 0)),
    ("ecc.aggregate_corrected", "nvmlDeviceGetTotalEccErrors", (0, 1)),
    ("ecc.aggregate_uncorrected", "nvmlDeviceGetTotalEccErrors", (1, 1)),
    ("pcie.replays", "nvmlDeviceGetPcieReplayCounter", ()),
    ("clocks.graphics", "nvmlDeviceGetClockInfo", (0,)),
    ("clocks.sm", "nvmlDeviceGetClockInfo", (1,)),
    ("clocks.memory", "nvmlDeviceGetClockInfo", (2,)),
    ("clocks.graphics_max", "nvmlDeviceGetMaxClockInfo", (0,)),
    ("clocks.sm_max", "nvmlDeviceGetMaxClockInfo", (1,)),
    ("clocks.memory_max", "nvmlDeviceGetMaxClockInfo", (2,)),
    ("temperature.gpu", "nvmlDeviceGetTemperature", (0,)),
)
# Zero is no answer to these.
POSITIVE = (
    ("pcie.generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    ("pcie.generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    ("pcie.width", "nvmlDeviceGetCurrPcieLinkWidth"),
    ("pcie.width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
)


def read(binding: Binding, handle: Any) -> dict[str, Figure]:
    """Return how a GPU is."""
    figures = {name: binding.ask(function, handle, *further) for name, function, further in PLAIN}
    for name, function in POSITIVE:
        answer = binding.ask(function, handle)
        figures[name] = absent("the driver says 0") if answer.value == 0 else answer
    for part in (_errors, _nvlink, _state):
        figures.update(part(binding, handle))
    return figures


def _errors(binding: Binding, handle: Any) -> dict[str, Figure]:
    mode = binding.ask("nvmlDeviceGetEccMode", handle)
    rows = binding.ask("nvmlDeviceGetRemappedRows", handle)
    pending = binding.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    found = {
        "ecc.enabled": change(mode, lambda pair: bool(pair[0])),
        "ecc.pending": change(mode, lambda pair: bool(pair[1])),
        "row_remap.corrected": change(rows, lambda row: int(row[0])),
        "row_remap.uncorrected": change(rows, lambda row: int(row[1])),
        "row_remap.pending": change(rows, lambda row: bool(row[2])),
        "row_remap.failed": change(rows, lambda row: bool(row[3])),
        "retired_pages.pending": change(pending, bool),
    }
    for cause, name in enumerate(("single_bit", "double_bit")):
        found[f"retired_pages.{name}"] = binding.ask(
            "nvmlDeviceGetRetiredPages", handle, cause, convert=lambda pages: len(list(pages))
        )
    return found


def _nvlink(binding: Binding, handle: Any) -> dict[str, Figure]:
    """Ask each link; a GPU without links refuses the first one, and one with fewer refuses the rest."""
    states: list[bool] = []
    for link in range(MOST_LINKS):
        answer = binding.ask("nvmlDeviceGetNvLinkState", handle, link)
        if answer.value is None:
            if not states:
                return {"nvlink.active": answer, "nvlink.inactive": answer}
            break
        states.append(bool(answer.value))
    return {
        "nvlink.active": Figure(sum(states)),
        "nvlink.inactive": Figure([link for link, active in enumerate(states) if not active]),
    }


def _state(binding: Binding, handle: Any) -> dict[str, Figure]:
    reasons = binding.ask(
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), handle, convert=int
    )
    utilization = binding.ask("nvmlDeviceGetUtilizationRates", handle)
    return {
        "throttle_reasons": change(
            reasons, lambda mask: sorted(name for bit, name in enumerate(THROTTLE_REASONS) if mask >> bit & 1)
        ),
        "power.draw": binding.ask("nvmlDeviceGetPowerUsage", handle, convert=lambda milliwatts: milliwatts / 1000),
        "power.limit": binding.ask(
            "nvmlDeviceGetEnforcedPowerLimit", handle, convert=lambda milliwatts: milliwatts / 1000
        ),
        "temperature.memory": _memory_temperature(binding, handle),
        "utilization.gpu": change(utilization, lambda rates: int(rates.gpu)),
        "utilization.memory": change(utilization, lambda rates: int(rates.memory)),
        "persistence": binding.ask("nvmlDeviceGetPersistenceMode", handle, convert=bool),
        "compute_mode": named(binding.ask("nvmlDeviceGetComputeMode", handle), dict(enumerate(COMPUTE_MODES))),
        "processes": _processes(binding, handle),
    }


def _memory_temperature(binding: Binding, handle: Any) -> Figure:
    field = binding.constant("NVML_FI_DEV_MEMORY_TEMP")
    if field is None:
        return absent("not in this version of pynvml")
    answer = binding.ask("nvmlDeviceGetFieldValues", handle, [field], convert=lambda values: values[0])
    if answer.value is None:
        return answer
    if answer.value.nvmlReturn:
        return absent("not supported")
    degrees = int(answer.value.value.uiVal)
    return Figure(degrees) if degrees else absent("the driver says 0")


def _processes(binding: Binding, handle: Any) -> Figure:
    found: dict[int, dict[str, Any]] = {}
    for kind, function in (
        ("compute", ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")),
        ("graphics", ("nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v2")),
    ):
        answer = binding.ask(function, handle, convert=list)
        if answer.value is None and kind == "compute":
            return answer
        for process in answer.value or []:
            found.setdefault(int(process.pid), _process(process, kind))
    return Figure([found[pid] for pid in sorted(found)])


def _process(process: Any, kind: str) -> dict[str, Any]:
    memory = process.usedGpuMemory
    return {
        "pid": int(process.pid),
        "name": _process_name(int(process.pid)),
        "kind": kind,
        "memory": None if memory is None or memory == NOT_AVAILABLE else int(memory),
    }


def _process_name(pid: int) -> str | None:
    """Return the short name of a process; None where it is in another PID namespace or gone."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return None

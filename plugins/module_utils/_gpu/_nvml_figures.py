# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The questions for one GPU in NVML's words, and how its answers become figures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import Figure, absent, change, unified
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

if TYPE_CHECKING:
    from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._nvml import Binding

ARCHITECTURES = dict(
    enumerate(
        ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"), start=2
    )
)
COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
THROTTLE_REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks_setting"),
)
MOST_LINKS = 36
WORDS_FOR_CPUS, WORDS_FOR_NODES = 64, 16  # 64 bits each: 4096 CPUs, 1024 nodes
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
    """Return every figure that NVML has for one GPU."""
    figures = {name: binding.ask(function, handle, *further) for name, function, further in PLAIN}
    for name, function in POSITIVE:
        answer = binding.ask(function, handle)
        figures[name] = absent("the driver says 0") if answer.value == 0 else answer
    figures.update(_identity(binding, handle))
    figures.update(_memory(binding, handle, figures))
    figures.update(_mig(binding, handle))
    figures.update(_errors(binding, handle))
    figures.update(_nvlink(binding, handle))
    figures.update(_state(binding, handle))
    return figures


def _identity(binding: Binding, handle: Any) -> dict[str, Figure]:
    node = binding.ask("nvmlDeviceGetNumaNodeId", handle)
    cpus = binding.ask("nvmlDeviceGetCpuAffinity", handle, WORDS_FOR_CPUS, convert=_bits)
    return {
        "name": binding.ask("nvmlDeviceGetName", handle, convert=text),
        "uuid": binding.ask("nvmlDeviceGetUUID", handle, convert=text),
        "architecture": _known(binding.ask("nvmlDeviceGetArchitecture", handle), ARCHITECTURES),
        "compute_capability": binding.ask(
            "nvmlDeviceGetCudaComputeCapability", handle, convert=lambda pair: f"{pair[0]}.{pair[1]}"
        ),
        "memory_node": absent("the driver says -1") if (node.value or 0) < 0 else node,
        "local_cpus": change(cpus, _topology.format_cpus) if cpus.value != [] else absent("the driver names no CPU"),
    }


def _memory(binding: Binding, handle: Any, figures: dict[str, Figure]) -> dict[str, Figure]:
    """Read memory by the newer call; the older one counts what the driver reserves as used (since driver 510)."""
    version = binding.constant("nvmlMemory_v2")
    newer = (
        binding.ask("nvmlDeviceGetMemoryInfo", handle, version) if version else absent("not in this version of pynvml")
    )
    answer = newer if newer.value is not None else binding.ask("nvmlDeviceGetMemoryInfo", handle)
    parts = ("total", "used", "free", *(("reserved",) if newer.value is not None else ()))
    found = {f"memory.{part}": _figure_of(answer, part) for part in parts}
    if found["memory.total"].value == 0:  # never a size of nothing: all of the answer is worthless then
        found = {name: absent("the driver says 0") for name in found}
    known = found["memory.total"].value is not None
    return {
        "memory.reserved": absent(newer.reason or "not reported") if known else found["memory.total"],
        **found,
        "memory.api": Figure("v1" if newer.value is None else "v2") if known else found["memory.total"],
        "memory.used_includes_reserved": Figure(newer.value is None) if known else found["memory.total"],
        "memory.unified": unified(figures["name"].value, None, found["memory.total"]),
    }


def _figure_of(answer: Figure, part: str) -> Figure:
    return change(answer, lambda memory: int(getattr(memory, part)))


def _mig(binding: Binding, handle: Any) -> dict[str, Figure]:
    mode = binding.ask("nvmlDeviceGetMigMode", handle)
    most = binding.ask("nvmlDeviceGetMaxMigDeviceCount", handle).value or 0
    handles = [binding.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot).value for slot in range(most)]
    instances = [_instance(binding, found) for found in handles if found is not None]
    return {
        "mig.enabled": change(mode, lambda pair: bool(pair[0])),
        "mig.pending": change(mode, lambda pair: bool(pair[1])),
        "mig.instances": Figure(instances) if mode.value is not None else mode,
    }


def _instance(binding: Binding, handle: Any) -> dict[str, Any]:
    memory = binding.ask("nvmlDeviceGetMemoryInfo", handle)
    return {
        "gpu_instance": binding.ask("nvmlDeviceGetGpuInstanceId", handle).value,
        "compute_instance": binding.ask("nvmlDeviceGetComputeInstanceId", handle).value,
        "uuid": binding.ask("nvmlDeviceGetUUID", handle, convert=text).value,
        "memory_total": _figure_of(memory, "total").value,
        "memory_used": _figure_of(memory, "used").value,
    }


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
            reasons, lambda mask: [name for bit, name in enumerate(THROTTLE_REASONS) if mask >> bit & 1]
        ),
        "power.draw": binding.ask("nvmlDeviceGetPowerUsage", handle, convert=lambda milliwatts: milliwatts / 1000),
        "power.limit": binding.ask(
            "nvmlDeviceGetEnforcedPowerLimit", handle, convert=lambda milliwatts: milliwatts / 1000
        ),
        "temperature.memory": _memory_temperature(binding, handle),
        "utilization.gpu": change(utilization, lambda rates: int(rates.gpu)),
        "utilization.memory": change(utilization, lambda rates: int(rates.memory)),
        "persistence": binding.ask("nvmlDeviceGetPersistenceMode", handle, convert=bool),
        "compute_mode": _known(binding.ask("nvmlDeviceGetComputeMode", handle), dict(enumerate(COMPUTE_MODES))),
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
        ("compute", "nvmlDeviceGetComputeRunningProcesses"),
        ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
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
        "name": process_name(int(process.pid)),
        "kind": kind,
        "memory": None if memory is None or memory == NOT_AVAILABLE else int(memory),
    }


def text(value: Any) -> str:
    """Return text from a binding of either kind, bytes or not."""
    content = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return re.sub(r"[\x00-\x1f]+", " ", _read.clean(content)).strip()


def process_name(pid: int) -> str | None:
    """Return the short name of a process; None where it is in another PID namespace or gone."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return None


def memory_nodes(binding: Binding, handle: Any) -> list[int]:
    """Return the NUMA nodes that NVML calls near to a GPU."""
    return binding.ask("nvmlDeviceGetMemoryAffinity", handle, WORDS_FOR_NODES, 0, convert=_bits).value or []


def _bits(words: Any) -> list[int]:
    return [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _known(answer: Figure, names: dict[int, str]) -> Figure:
    if answer.value is None:
        return answer
    name = names.get(int(answer.value))
    return Figure(name) if name else absent(f"unknown code {answer.value}")

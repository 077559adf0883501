# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a GPU is, in NVML's words: its names, place, memory and slices."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._binding import Binding
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import (
    Figure,
    absent,
    change,
    named,
    unified,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

ARCHITECTURES = dict(
    enumerate(
        ("Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"), start=2
    )
)
MOST_INSTANCES = 64
ADDRESSING = {1: "HMM", 2: "ATS"}
WORDS_FOR_CPUS, WORDS_FOR_NODES = 64, 16  # 64 bits each: 4096 CPUs, 1024 nodes


def read(binding: Binding, handle: Any) -> dict[str, Figure]:
    """Return what a GPU is: its names, its place, its memory and its slices."""
    identity = _identity(binding, handle)
    return {**identity, **_memory(binding, handle, identity), **_mig(binding, handle)}


def _identity(binding: Binding, handle: Any) -> dict[str, Figure]:
    node = binding.ask("nvmlDeviceGetNumaNodeId", handle)
    addressing = binding.ask("nvmlDeviceGetAddressingMode", handle)
    cpus = binding.ask("nvmlDeviceGetCpuAffinity", handle, WORDS_FOR_CPUS, convert=_bits)
    return {
        "name": binding.ask("nvmlDeviceGetName", handle, convert=text),
        "uuid": binding.ask("nvmlDeviceGetUUID", handle, convert=text),
        "architecture": named(binding.ask("nvmlDeviceGetArchitecture", handle), ARCHITECTURES),
        "compute_capability": binding.ask(
            "nvmlDeviceGetCudaComputeCapability", handle, convert=lambda pair: f"{pair[0]}.{pair[1]}"
        ),
        "addressing_mode": absent("none in force") if addressing.value == 0 else named(addressing, ADDRESSING),
        "memory_node": absent("the driver says -1") if (node.value or 0) < 0 else node,
        "local_cpus": change(cpus, _topology.format_cpus) if cpus.value != [] else absent("the driver names no CPU"),
    }


def _memory(binding: Binding, handle: Any, identity: dict[str, Figure]) -> dict[str, Figure]:
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
        "memory.unified": unified(identity["name"].value, identity["addressing_mode"].value, found["memory.total"]),
    }


def _figure_of(answer: Figure, part: str) -> Figure:
    return change(answer, lambda memory: int(getattr(memory, part)))


def _mig(binding: Binding, handle: Any) -> dict[str, Figure]:
    mode = binding.ask("nvmlDeviceGetMigMode", handle)
    most = binding.ask("nvmlDeviceGetMaxMigDeviceCount", handle).value or 0
    slots = range(min(most, MOST_INSTANCES))
    handles = [binding.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot).value for slot in slots]
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


def text(value: Any) -> str:
    """Return text from a binding of either kind, bytes or not."""
    content = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return re.sub(r"[\x00-\x1f]+", " ", _read.clean(content)).strip()


def memory_nodes(binding: Binding, handle: Any) -> list[int]:
    """Return the NUMA nodes that NVML calls near to a GPU."""
    return binding.ask("nvmlDeviceGetMemoryAffinity", handle, WORDS_FOR_NODES, 0, convert=_bits).value or []


def _bits(words: Any) -> list[int]:
    return [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]

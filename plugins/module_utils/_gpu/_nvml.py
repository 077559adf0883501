# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask NVML through pynvml: runs in a child, and gives all that JSON can carry."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _nvml_figures, _nvml_health
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._binding import UNKNOWN, Binding
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import Figure, lost, pack

NO_BINDING = -1
MOST = 256  # GPUs; a library that counts more of them is not to be believed
LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.[\d.]+)")


def gather() -> Iterator[dict[str, Any]]:
    """Yield how the library did (`code` 0 or why not, and versions), then each GPU: `asking` before its questions."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        yield {"code": NO_BINDING}
        return
    binding = Binding(pynvml)
    code = binding.start()
    start: dict[str, Any] = {"code": code, "library": _library_version(), "binding": str(pynvml.__file__)}
    if code:
        yield start
        return
    count = binding.ask("nvmlDeviceGetCount")
    cuda = binding.ask(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"))
    yield {
        **start,
        "code": 0 if count.value is not None else UNKNOWN,
        "driver": binding.ask("nvmlSystemGetDriverVersion", convert=_nvml_figures.text).value,
        "library": binding.ask("nvmlSystemGetNVMLVersion", convert=_nvml_figures.text).value,
        "cuda": None if cuda.value is None else f"{cuda.value // 1000}.{cuda.value % 1000 // 10}",
    }
    for index in range(min(count.value or 0, MOST)):
        yield {"asking": index}
        yield _gpu(binding, index)


def _gpu(binding: Binding, index: int) -> dict[str, Any]:
    handle = binding.ask("nvmlDeviceGetHandleByIndex", index)
    if handle.value is None:
        figures = {"index": Figure(index)}
        return {"bus_id": None, "problem": handle.reason, "figures": pack(figures), "memory_nodes": []}
    address = binding.ask("nvmlDeviceGetPciInfo", handle.value, convert=lambda info: _topology.bus_id(info.busId))
    figures = {**_nvml_figures.read(binding, handle.value), **_nvml_health.read(binding, handle.value)}
    figures["index"] = Figure(index)
    return {
        "bus_id": address.value,
        "problem": lost(figures),
        "figures": pack(figures),
        "memory_nodes": _nvml_figures.memory_nodes(binding, handle.value),
    }


def _library_version() -> str | None:
    """Return the version in the name of the library file that this process has loaded, for when it does not start."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as stream:
            found = LIBRARY.search(stream.read())
    except OSError:
        return None
    return found[1].rstrip(".") if found else None

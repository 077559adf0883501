# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask NVML through pynvml, of whichever age: runs in a child, and gives each figure or the reason why not."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _nvml_figures
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import Figure, absent, pack

NO_BINDING, LIBRARY_NOT_FOUND, LOST, NO_GPUS = -1, 12, 15, 6
# What a return code means; the rest are told by their number. 13 is a library older than the question.
WORDS = {
    3: "not supported",
    4: "insufficient permissions",
    9: "driver not loaded",
    10: "timeout",
    12: "library not found",
    13: "not in this version of the library",
    15: "GPU is lost",
    16: "GPU requires reset",
    18: "driver/library version mismatch",
    999: "unknown error",
}
LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.[\d.]+)")


class Binding:
    """One pynvml module: every question answers with a figure, never with an exception."""

    def __init__(self, module: Any) -> None:
        """Wrap a module that was imported."""
        self._module = module

    def ask(
        self, names: str | tuple[str, ...], *arguments: Any, convert: Callable[[Any], Any] = lambda value: value
    ) -> Figure:
        """Call the first of these functions that the binding has; a newer name stands before its older one."""
        figure = absent("not in this version of pynvml")
        for name in (names,) if isinstance(names, str) else names:
            function = getattr(self._module, name, None)
            if function is None:
                continue
            try:
                return Figure(convert(function(*arguments)))
            except self._module.NVMLError as error:
                figure = absent(explain(int(error.value)))
            except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
                figure = absent(f"{name}: not understood ({error})")
        return figure

    def constant(self, name: str) -> Any:
        """Return a constant of the binding, None where it is too old to have it."""
        return getattr(self._module, name, None)

    def start(self) -> int:
        """Start the library; 0 or its return code."""
        try:
            self._module.nvmlInit()
        except self._module.NVMLError as error:
            return int(error.value)
        return 0


def explain(code: int) -> str:
    """Return a return code in words."""
    return WORDS.get(code, f"NVML error {code}")


def gather() -> dict[str, Any]:
    """Return all that NVML tells: `code` 0 and the GPUs, or why not."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return {"code": NO_BINDING}
    binding = Binding(pynvml)
    code = binding.start()
    answer: dict[str, Any] = {"code": code, "library": _library_version(), "binding": str(pynvml.__file__)}
    if code:
        return answer
    count = binding.ask("nvmlDeviceGetCount")
    cuda = binding.ask(("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"))
    return {
        **answer,
        "code": 0 if count.value is not None else 999,
        "driver": binding.ask("nvmlSystemGetDriverVersion", convert=_nvml_figures.text).value,
        "library": binding.ask("nvmlSystemGetNVMLVersion", convert=_nvml_figures.text).value,
        "cuda": None if cuda.value is None else f"{cuda.value // 1000}.{cuda.value % 1000 // 10}",
        "gpus": [_gpu(binding, index) for index in range(count.value or 0)],
    }


def _gpu(binding: Binding, index: int) -> dict[str, Any]:
    handle = binding.ask("nvmlDeviceGetHandleByIndex", index)
    if handle.value is None:
        return {"index": index, "bus_id": None, "problem": handle.reason, "figures": {}, "memory_nodes": []}
    address = binding.ask("nvmlDeviceGetPciInfo", handle.value, convert=lambda info: _topology.bus_id(info.busId))
    figures = _nvml_figures.read(binding, handle.value)
    figures["index"] = Figure(index)
    # A card that fell off the bus answers the first questions from memory and fails at the others.
    lost = [figure.reason for figure in figures.values() if figure.reason in (WORDS[LOST], WORDS[16])]
    return {
        "index": index,
        "bus_id": address.value,
        "problem": lost[0] if lost else None,
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

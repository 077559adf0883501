# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pynvml module of whichever age, asked without exceptions: each question gives a value or a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _figures
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import Figure, absent

NOT_PERMITTED, LIBRARY_NOT_FOUND, UNKNOWN = 4, 12, 999
# What a return code means; the rest are told by their number. 13 is a library older than the question.
WORDS = {
    3: "not supported",
    NOT_PERMITTED: "insufficient permissions",
    9: "driver not loaded",
    10: "timeout",
    LIBRARY_NOT_FOUND: "library not found",
    13: "not in this version of the library",
    15: _figures.LOST[0],
    16: _figures.LOST[1],
    18: "driver/library version mismatch",
    UNKNOWN: "unknown error",
}


class Binding:
    """One pynvml module: every question answers with a figure, never with an exception."""

    def __init__(self, module: Any) -> None:
        """Wrap a module that was imported."""
        self._module = module

    def ask(
        self, names: str | tuple[str, ...], *arguments: Any, convert: Callable[[Any], Any] = lambda value: value
    ) -> Figure:
        """Call the first of these functions that works; a newer name stands before its older one."""
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

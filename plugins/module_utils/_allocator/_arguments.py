# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the module allocator_facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Options

LISTS = ("slices", "services", "processes", "users", "interpreters")


def spec() -> dict[str, Any]:
    """Return the argument spec."""
    lists: dict[str, Any] = {name: {"type": "list", "elements": "str", "default": []} for name in LISTS}
    return {
        **lists,
        "environment": {"type": "dict", "default": {}},
        "import_torch": {"type": "bool", "default": False},
        "timeout": {"type": "float", "default": 8.0},
    }


def options(parameters: Mapping[str, Any]) -> Options:
    """Return the parameters as the sources take them."""
    environment = {str(name): str(value) for name, value in parameters["environment"].items()}
    named = {name: tuple(parameters[name]) for name in LISTS}
    return Options(**named, environment=environment, import_torch=parameters["import_torch"])

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bring what systemctl and the kernel say of a property into the normal form in which it is declared."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ansible_collections.gpu_fleet.node.plugins.module_utils import _manager
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._properties import INFINITY, PROPERTIES, Property

SECONDS: dict[str, float] = {"y": 31557600, "month": 2629800, "w": 604800, "d": 86400, "h": 3600, "min": 60, "s": 1}
SECONDS.update({"ms": 1e-3, "us": 1e-6})
NO_LIMIT_V1 = 2**62  # what v1 shows for no limit is the largest multiple of the page size


def names(one: Property) -> tuple[str, ...]:
    """Return what to ask systemctl for."""
    return (one.name, f"{one.name}Soft") if "Limit" in one.name[:12] else (one.show or one.name,)


def normal(one: Property, shown: Mapping[str, str]) -> str | None:
    """Return the value as a declaration spells it; None where this systemd does not know the property."""
    values = [shown.get(name) for name in names(one)]
    if any(value is None for value in values):
        return None
    text = str(values[0])
    if len(values) == 2:
        return f"{values[1]}:{text}"
    if one.name == "CPUQuota":
        return text if text == INFINITY else f"{round(seconds(text) * 100)}%"
    if one.name == "ManagedOOMMemoryPressureLimit":
        return f"{round(int(text) * 100 / (2**32 - 1), 2):g}%" if text.isdigit() else text
    return text


def seconds(text: str) -> float:
    """Return a span of time such as 1.5s or 1min 40s in seconds."""
    return sum(float(number) * SECONDS[unit] for number, unit in re.findall(r"([\d.]+)\s*([a-z]+)", text))


def kernel(text: str | None) -> str | None:
    """Return what the kernel holds for a control group."""
    word = (text or "").strip()
    if not word:
        return None
    return INFINITY if word == "max" or (word.isdigit() and int(word) >= NO_LIMIT_V1) else word


def assignment(one: Property, state: str) -> str:
    """Return what gives a control group this state; a property that was not set becomes so again."""
    return f"{one.name}={'' if state in (one.empty, '') else state}"


def stale(host: Host, unit: str, one: Property, value: str) -> bool:
    """Tell whether a loaded unit of a prefix has another value and has yet to hear of a change in its files."""
    found = _manager.loaded(host, unit, [*names(one), "NeedDaemonReload"])
    return any(row.get("NeedDaemonReload") == "yes" and normal(one, row) != value for row in found)


def ask(host: Host, unit: str) -> Mapping[str, str] | None:
    """Return everything that can be declared for a unit, as the manager has it; one question a unit."""
    kind = unit.rpartition(".")[2]
    wanted = [name for one in PROPERTIES.values() if kind in one.units for name in names(one)]
    more = [] if unit == _manager.MANAGER else ["ControlGroup", "LoadState", "MainPID", "Slice"]
    return _manager.show(host, unit, [*wanted, *more])

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits that a user, a service and a slice really get, over all files in order, and who decides each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _effective_limits
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _limits
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _effects, _shown
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._properties import INFINITY, PROPERTIES
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers import _units

Row = dict[str, Any]
OF_A_TREE = ("MemoryMax", "TasksMax")  # a group never has more than those above it
DEFAULT = "the default of systemd"


def effective(host: Host, users: Sequence[str], units: Sequence[str]) -> list[Row]:
    """Return a row for each limit: who has it, what it is, and the line, file or group that decides."""
    rows = [row for name in users for row in _login(host, name)]
    for unit in units:
        rows += _service(host, unit) if unit.endswith(".service") else []
        rows += _tree(host, unit)
    return rows


def _row(who: str, item: str, value: str, by: str | None) -> Row:
    return {"who": who, "item": item, "value": value, "by": by}


def _login(host: Host, name: str) -> Iterator[Row]:
    user, groups = _limits.account(host, name)
    found = _effective_limits.effective(_effective_limits.files(host), user, groups)
    for item, limit in sorted(found.items()):
        for end in ("soft", "hard"):
            value = getattr(limit, end)
            if value is not None:
                yield _row(name, f"{end} {item}", value, getattr(limit, f"{end}_source"))


def _service(host: Host, unit: str) -> Iterator[Row]:
    """Yield what the manager gives a service, and what its process has where that differs."""
    shown = _shown.ask(host, unit)
    if shown is None or shown.get("LoadState") != "loaded":
        return
    running = _effects.held(host.glance(f"/proc/{shown.get('MainPID') or 0}/limits") or "")
    for name in (one for one in sorted(PROPERTIES) if one.startswith(_effects.LIMIT)):
        value = _shown.normal(PROPERTIES[name], shown)
        if value is None:
            continue
        yield _row(unit, name, value, _file(host, unit, name) or _file(host, "manager", f"Default{name}") or DEFAULT)
        now = running.get(name, value)
        if now != value:
            yield _row(unit, f"{name} of process {shown['MainPID']}", now, "its start before the change, or itself")


def _file(host: Host, unit: str, name: str) -> str | None:
    """Return the last file that gives a property."""
    paths = [path for _base, path in _units.files(host, unit)]
    return next((path for path in reversed(paths) if _units.assigned(host.read(path) or "", name)), None)


def _tree(host: Host, unit: str) -> Iterator[Row]:
    """Yield the smallest limit of a group and those above it."""
    for name in OF_A_TREE:
        values: dict[str, str] = {}
        for one in _above(host, unit):
            value = _shown.normal(PROPERTIES[name], _shown.ask(host, one) or {})
            if value is not None and (value == INFINITY or value.isdigit()):
                values[one] = value
        if values:
            least = min(values, key=lambda one: float(values[one]))
            source = _file(host, least, name) or "set at run time"
            by = DEFAULT if values[least] == INFINITY else source if least == unit else f"{least} ({source})"
            yield _row(unit, name, values[least], by)


def _above(host: Host, unit: str) -> list[str]:
    """Return a unit and the slices above it."""
    shown: Mapping[str, str] = _shown.ask(host, unit) or {}
    if unit.endswith(".slice"):
        words = unit[: -len(".slice")].split("-")
        return ["-".join(words[:level]) + ".slice" for level in range(len(words), 0, -1)]
    above = shown.get("Slice", "")
    return [unit, *(_above(host, above) if above and above != "-.slice" else [])]

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A group of figures with the place they came from, and for each null the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read


@dataclass(frozen=True)
class Missing:
    """Stands for a figure that cannot be had, and says why."""

    reason: str


def group(source: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures with their source; what is missing is null, and its reason stands in `reasons`."""
    values = {name: None if isinstance(value, Missing) else value for name, value in figures.items()}
    reasons = {name: value.reason for name, value in figures.items() if isinstance(value, Missing)}
    return {**values, "source": source, "reasons": reasons}


def text(host: Host, path: str) -> str | Missing:
    """Return the text of a file, or why there is none."""
    found = _read.text(host, path)
    return Missing(_read.why_not(host, path)) if found is None else found


def number(host: Host, path: str) -> int | Missing:
    """Return the one number in a file, or why there is none."""
    found = text(host, path)
    if isinstance(found, Missing):
        return found
    return int(found) if _read.NUMBER.fullmatch(found) else Missing(f"{path}: holds {found[:40]!r}, not a number")

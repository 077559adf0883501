# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values that pass between the parts of the smoke test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
ROW = ("name", "status", "observed", "expected", "unit", "threshold_source", "action", "reason")


@dataclass(frozen=True)
class Launch:
    """How the probe is started: where, as whom, below what."""

    python: str
    user: str = ""
    slice: str = ""
    cgroups: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    like_service: str = ""


@dataclass(frozen=True)
class Gap:
    """Why GPU checks are not run, and what that means."""

    status: str
    reason: str
    action: str = ""


@dataclass(frozen=True)
class Gpus:
    """What the host says of its GPUs before torch is started."""

    count: int  # on PCI
    names: tuple[str, ...] = ()
    links: tuple[float, ...] = ()  # GB/s that the link of each can carry; 0 for unknown
    gap: Gap | None = None  # None: they can be used
    mig: bool = False  # a process sees one slice of one GPU


def row(check: str, name: str, status: str, **more: Any) -> Row:
    """Return a row with all its keys."""
    empty: Row = {key: None if key in ("observed", "expected") else "" for key in ROW}
    return {"check": check, **empty, "duration": 0.0, **more, "name": name, "status": status}

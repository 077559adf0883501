# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the figures of a run with those of the run before, and with those of like hosts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

WORSE_WHEN_LOWER = ("GB/s", "GB/s bus")
WORSE_WHEN_HIGHER = ("s", "s/GiB")
MEDIAN_OF = 3
PLUMBING = ".gloo."  # two processes on whichever CPUs are free: it works or not, and its rate says nothing of the host
LIKE_HOSTS = 5  # fewer have no median worth the name
SPREADS = 3.5  # how many robust spreads off is an outlier
LEAST = 0.03  # and at least this share of the median, so that a very even fleet has no outliers by rounding
NORMAL = 1.4826  # the median distance of normal figures, times this, is their standard deviation

Figures = Sequence[Mapping[str, Any]]


def worse(unit: str, change: float) -> float:
    """Return by how much a change of a figure is for the worse; 0 where it is not."""
    if unit in WORSE_WHEN_LOWER:
        return max(0.0, -change)
    return max(0.0, change) if unit in WORSE_WHEN_HIGHER else 0.0


def previous(now: Figures, before: Figures, drop: float) -> list[dict[str, Any]]:
    """Return each common figure with its change in percent, and whether it got worse by more than `drop` percent."""
    old = {figure["name"]: figure for figure in before}
    rows = []
    for figure in now:
        past = old.get(figure["name"])
        if past is None or past["unit"] != figure["unit"] or not past["value"] or not _compared(figure):
            continue
        change = 100 * (figure["value"] - past["value"]) / past["value"]
        noise = 100 * 3 * max(past.get("spread", 0.0), figure.get("spread", 0.0)) / past["value"]
        rows.append(
            {
                "name": figure["name"],
                "before": past["value"],
                "now": figure["value"],
                "unit": figure["unit"],
                "change_percent": round(change, 2),
                "worse": worse(figure["unit"], change) > max(drop, noise),
            }
        )
    return rows


def _compared(figure: Mapping[str, Any]) -> bool:
    """Tell whether a figure has a better side, is a median of several samples, and says something of the host."""
    return (
        PLUMBING not in figure["name"]
        and figure["samples"] >= MEDIAN_OF
        and figure["unit"] in (*WORSE_WHEN_LOWER, *WORSE_WHEN_HIGHER)
    )


def fleet(hosts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every outlier: a host that is worse than its like by more than the fleet's own spread."""
    groups: dict[str, dict[str, Figures]] = {}
    for host, result in hosts.items():
        if result.get("measurements"):
            kind = f"{result.get('profile')} {', '.join(result.get('gpus') or ['no GPU'])}"
            groups.setdefault(kind, {})[host] = result["measurements"]
    return [row for kind, members in groups.items() if len(members) >= LIKE_HOSTS for row in _outliers(kind, members)]


def _outliers(kind: str, members: Mapping[str, Figures]) -> list[dict[str, Any]]:
    table: dict[tuple[str, str], dict[str, float]] = {}
    for host, figures in members.items():
        for figure in figures:
            if _compared(figure):
                table.setdefault((figure["name"], figure["unit"]), {})[host] = figure["value"]
    rows = []
    for (name, unit), values in table.items():
        if len(values) < LIKE_HOSTS:
            continue
        middle = statistics.median(values.values())
        spread = NORMAL * statistics.median(abs(value - middle) for value in values.values())
        for host, value in values.items():
            off = worse(unit, value - middle)
            if middle and off > max(SPREADS * spread, LEAST * middle):
                rows.append(
                    {
                        "host": host,
                        "name": name,
                        "value": value,
                        "unit": unit,
                        "median": middle,
                        "spread": round(spread, 4),
                        "off_percent": round(100 * (value - middle) / middle, 1),
                        "off_spreads": round(off / spread, 1) if spread else None,
                        "hosts": len(values),
                        "like": kind,
                    }
                )
    return rows

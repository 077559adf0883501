# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make one word of many rows."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._model import Row

ORDER = ("fail", "unknown", "warn", "pass")


def verdict(rows: Sequence[Row]) -> str:
    """Any fail is fail, else any unknown is unknown; a run in which nothing was judged is unknown too."""
    seen = {row["status"] for row in rows}
    return next((status for status in ORDER if status in seen), "unknown")


def sentence(rows: Sequence[Row]) -> str:
    """Return what to look at first."""
    bad = [row for row in rows if row["status"] in ("fail", "unknown", "warn")]
    if not bad:
        passed = sum(row["status"] == "pass" for row in rows)
        return f"{passed} passed, {len(rows) - passed} skipped"
    bad.sort(key=lambda row: ORDER.index(row["status"]))
    first = bad[0]
    why = first["reason"] or f"{first['observed']} {first['unit']}, {first['expected']} was expected"
    more = f"; {len(bad) - 1} more" if len(bad) > 1 else ""
    return f"{first['name']}: {first['status']}, {why}; {first['action']}{more}"

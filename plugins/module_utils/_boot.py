# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what the next boot gives a setting, and who of all its owners wins."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._values import raised, reaches
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Boot, Setting, Writer


def boot(setting: Setting, stored: str | None, ours: str, writers: Sequence[Writer]) -> Boot:
    """Return the value of the next boot if our file holds `stored`."""
    early = _early(stored, ours, writers)
    late = [one for one in writers if one.stage in ("late", "manager") and one.reapplies]
    blind = [one for one in late if one.value is None]
    if blind:
        return Boot(None, blind[0].source, False, f"what {blind[0].source} writes is not understood")
    values = {_later(setting, early, one) for one in late}
    if len(values) > 1:
        names = ", ".join(f"{one.source} ({one.value})" for one in late)
        return Boot(None, late[0].source, False, f"several write it late in the boot, in no known order: {names}")
    if late and values != {early.value}:
        return Boot(values.pop(), late[-1].source, False)
    return early


def _later(setting: Setting, early: Boot, late: Writer) -> str | None:
    """Return the value after a late writer; one that only raises leaves a higher value alone."""
    if late.rule == "at_least" and early.value is not None and late.value is not None:
        return raised(setting.key, early.value, late.value)
    return late.value


def _early(stored: str | None, ours: str, writers: Sequence[Writer]) -> Boot:
    """Return what the files read early in the boot give; the boot line comes before all of them."""
    files = [one for one in writers if one.stage == "boot_file"]
    if stored is not None:
        files = [one for one in files if _beats(one, ours)]
        if not files:
            return Boot(stored, ours, True)
    files = files or [one for one in writers if one.stage == "boot_line"]
    if not files:
        return Boot(None, None, False)
    winner = files[-1]  # the readers name the one that acts last at the end
    reason = None if winner.value is not None else f"what {winner.source} writes is not understood"
    return Boot(winner.value, winner.source, False, reason)


def _beats(one: Writer, ours: str) -> bool:
    """Tell whether a file wins over ours: sysctl.d and limits.d take the last, globs never, tmpfiles.d the first."""
    base = os.path.basename(ours)
    if one.kind in ("sysctl", "limits", "units"):
        return not one.pattern and one.order > base
    return one.order > base if one.pattern else one.order < base


def beats_ours(setting: Setting, ours: str, writers: Sequence[Writer]) -> Writer | None:
    """Return a file that gives the setting another value at boot in spite of ours, or None."""
    files = [one for one in writers if one.stage == "boot_file" and _beats(one, ours)]
    return next((one for one in files if not agrees(setting, setting.value, one)), None)


def conflicts(setting: Setting, value: str, ours: str, writers: Sequence[Writer]) -> tuple[Writer, ...]:
    """Return the other owners who give the setting another value; files that ours simply outranks are none."""
    acting = (one for one in writers if one.stage != "boot_file" or _beats(one, ours))
    return tuple(one for one in acting if not agrees(setting, value, one))


def agrees(setting: Setting, value: str, one: Writer) -> bool:
    """Tell whether what another owner writes leaves the setting as it is wanted."""
    if one.value is None:
        return False
    after = raised(setting.key, value, one.value) if one.rule == "at_least" else one.value
    return reaches(setting, after) if setting.rule == "at_least" else after == value

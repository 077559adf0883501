# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say how a host differs from its declared state: the views and the drift that `tuning_info` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _atoms, _report
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._decide import Decision
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._plan import Plan
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import KINDS, _values
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Boot, Setting

Row = dict[str, Any]


def audit(plan: Plan, refused: Mapping[Setting, str]) -> dict[str, Any]:
    """Return all views of each setting and what keeps the host from being in sync; `refused` is what it cannot take."""
    paths = {path for one in refused for path in KINDS[one.kind].files([one])}
    names = {(one.kind, one.key) for one in refused}
    drift = [_row(one, "host", None, why) for one, why in refused.items()]
    drift += [row for one in plan.decisions for row in _drift(one)]
    drift += [row for row in _files(plan) if row["key"] not in paths]
    drift += [row for row in _leftovers(plan) if (row["kind"], row["key"]) not in names]
    return {
        "in_sync": not drift,
        "drift": drift,
        "settings": [_views(one) for one in plan.decisions],
        "conflicts": [row for one in plan.decisions for row in _report.conflicts(one)],
        "not_applicable": _report.not_applicable(plan.decisions),
    }


def _views(one: Decision) -> Row:
    view, setting, entry = one.view, one.view.setting, one.view.entry
    boot = view.boot(view.stored)
    return {
        "set": setting.set_name,
        "kind": setting.kind,
        "key": setting.key,
        "rule": setting.rule,
        "wanted": setting.value,
        "held": one.held,
        "live": view.live,
        "live_reason": view.live_reason,
        "stored": view.stored,
        "boot": boot.value,
        "boot_winner": boot.winner,
        "boot_reason": boot.reason,
        "original": entry.original if entry is not None and entry.known else None,
        "original_reason": _original_reason(one),
        "reason": one.reason,
    }


def _original_reason(one: Decision) -> str | None:
    if one.view.entry is None:
        return "not touched by us"
    return None if one.view.entry.known else "never seen on this machine"


def _drift(one: Decision) -> list[Row]:
    view, setting = one.view, one.view.setting
    if not one.applicable:
        return []
    found = []
    if view.live is not None and not one.true_now:
        found.append(_row(setting, "live", view.live, None))
    if one.held and view.stored != one.stored:
        found.append(_row(setting, "stored", view.stored, view.path))
    if one.held and view.running is not None:
        found.append(_row(setting, "running", None, view.running))
    boot = view.boot(view.stored)
    if boot.value is None and boot.reason is not None and view.persistence is None and not view.missing:
        found.append(_row(setting, "boot", "unknown", boot.reason))
    elif one.held and view.persistence is None and not _kept(setting, boot.value) and not _said(one, boot):
        found.append(_row(setting, "boot", boot.value, boot.winner or "the kernel"))
    return found


def _said(one: Decision, boot: Boot) -> bool:
    """Tell whether the stored view has said it all: nobody else gives a file or a limit a value at boot."""
    alone = boot.winner is None and KINDS[one.view.setting.kind].NO_LIVE is not None
    return alone and one.view.stored != one.stored


def _kept(setting: Setting, value: str | None) -> bool:
    if value is None:
        return False
    return _values.reaches(setting, value) if setting.rule == "at_least" else value == setting.value


def _row(setting: Setting, view: str, actual: str | None, by: str | None) -> Row:
    row = {"set": setting.set_name, "kind": setting.kind, "key": setting.key, "view": view, "wanted": setting.value}
    return {**row, "actual": actual, "by": by}


def _files(plan: Plan) -> list[Row]:
    """Return our files whose mode, owner or comments were changed, though every value in them is right."""
    wrong = {one.view.path for one in plan.decisions if one.held and one.view.stored != one.stored}
    return [
        {
            "set": step.set_name,
            "kind": step.atom.kind,
            "key": step.atom.key,
            "view": "stored",
            "wanted": _report.brief(step.after),
            "actual": _report.brief(step.before),
            "by": step.atom.key,
        }
        for step in plan.steps
        if step.atom.kind == _atoms.FILE and step.atom.key not in wrong and step.after is not None
    ]


def _leftovers(plan: Plan) -> list[Row]:
    """Return what is still ours but not declared any more, and what a run that was cut short left behind."""
    found = [
        {
            "set": one.entry.set_name,
            "kind": one.atom.kind,
            "key": one.atom.key,
            "view": "wanted",
            "wanted": None,
            "actual": _report.brief(one.entry.applied),
            "by": "not declared any more",
        }
        for one in plan.releases
        if one.atom.kind != _atoms.FILE
    ]
    cut = {
        "view": "live",
        "wanted": None,
        "actual": None,
        "by": "a run that was cut short; the next run undoes it first",
    }
    return found + [
        {"set": step.set_name, "kind": step.atom.kind, "key": step.atom.key, **cut} for step in plan.before.transaction
    ]

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a call from module parameters to a result: the one place that knows check mode, the lock and the order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _manager
from ansible_collections.gpu_fleet.node.plugins.module_utils._boot import beats_ours
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import (
    _apply,
    _audit,
    _couplings,
    _effective,
    _journal,
    _reload,
    _report,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._decide import Decision
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._journal import Journal
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._plan import Plan, plan
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._request import Request, request
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import KINDS
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, TuningError


def tune(host: Host, params: Mapping[str, Any], check: bool) -> tuple[dict[str, Any], list[str]]:
    """Make the sets true, or take them back; return the result and the warnings."""
    wanted = request(params)
    _privileged(host)
    if check:
        made, notes = _planned(host, wanted, _journal.load(host))
        return _report.rows(made), _warnings(host, made, notes)
    with host.lock(_journal.FOLDER, float(params.get("lock_timeout") or 0)):
        journal, left = _apply.recover(host, _journal.load(host), wanted.reload)
        made, notes = _planned(host, wanted, journal)
        _apply.apply(host, made)
        _restart(host, made)
    return _report.rows(made), _warnings(host, made, [*left, *notes])


def _restart(host: Host, made: Plan) -> None:
    """Restart what was told to, once everything is true and recorded."""
    for unit in made.restarts:
        try:
            _manager.restart(host, unit)
        except TuningError as error:
            raise TuningError(f"{error}; all settings are in place, and {unit} has the old ones") from error


def inform(host: Host, params: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return all views of the sets; nothing is changed."""
    wanted = request(params)
    _privileged(host)
    made, refused = _surveyed(host, wanted, _journal.load(host))
    found = _effective.effective(host, params.get("users") or (), params.get("units") or ())
    return {**_audit.audit(made, refused), "effective": found}, _warnings(host, made, [])


def _surveyed(host: Host, wanted: Request, journal: Journal) -> tuple[Plan, dict[Setting, str]]:
    """Plan as much as can be: what this host does not take is a difference like others, and hides none of them."""
    refused: dict[Setting, str] = {}
    while True:
        try:
            return plan(host, wanted, journal), refused
        except TuningError as error:
            if error.setting is None:
                raise
            refused[error.setting] = str(error)
            name = (error.setting.kind, error.setting.key)
            kept = tuple(one for one in wanted.settings if (one.kind, one.key) != name)
            wanted = replace(wanted, settings=kept)


def _privileged(host: Host) -> None:
    if host.root == "/" and os.geteuid() != 0:
        raise TuningError(f"tuning: needs root on the host, but runs as uid {os.geteuid()}; set become: true")


def _planned(host: Host, wanted: Request, journal: Journal) -> tuple[Plan, list[str]]:
    made = plan(host, wanted, journal)
    for one in made.decisions:
        _refuse(one, wanted.strict)
    _couplings.check(host, made)
    stuck = [one for one in made.releases if one.obstacle is not None]
    if wanted.strict and stuck:
        key, reason = stuck[0].atom.key, stuck[0].obstacle
        raise TuningError(f"{key}: cannot be given its original back ({reason}), and strict is set")
    notes = _reload.warning(host, wanted.reload, [step.atom for step in made.steps])
    return made, [*([_apply.CUT_SHORT] if journal.transaction else []), *notes]


def _refuse(one: Decision, strict: bool) -> None:
    """Stop before the first write where the call could not be kept."""
    setting = one.view.setting
    if strict and not one.applicable:
        raise TuningError(f"{setting.key}: cannot be {setting.value} on this host ({one.reason}), and strict is set")
    if not one.held or one.stored is None or one.view.persistence is not None:
        return  # nothing reads our file at boot, and so says a warning
    winner = beats_ours(setting, one.view.path, one.view.writers)
    if winner is not None:
        raise TuningError(
            f"{setting.key}: is to be {setting.value}, but {winner.source} says {winner.value} and wins over "
            f"{one.view.path} at the next boot; take the key out of that file"
        )
    rivals = [row for row in _report.conflicts(one) if strict and row["stage"] in ("late", "manager")]
    if rivals:
        raise TuningError(f"{_report.sentence(rivals[0])} (strict is set)")


def _warnings(host: Host, made: Plan, notes: list[str]) -> list[str]:
    """Return one sentence for each thing that the operator should act on."""
    found = list(notes)
    if made.before.foreign is not None:
        found.append(
            f"{_journal.PATH}: was written on another machine ({made.before.foreign}), so its files are taken over and "
            f"its kernel values, which were never this machine's, can only be taken back by a reboot"
        )
    found += [one.left for one in made.releases if one.left is not None]
    found += [
        f"{one.view.setting.key}: {one.reason}"
        for one in made.decisions
        if not one.applicable and "?" in (one.reason or "")
    ]
    found += sorted({one.view.persistence for one in made.decisions if one.held and one.view.persistence is not None})
    for name, kind in KINDS.items():
        found += kind.advice(host, [one.view.setting for one in made.decisions if one.view.setting.kind == name])
    rows = (row for one in made.decisions for row in _report.conflicts(one))
    return found + [_report.sentence(row) for row in rows if row["stage"] != "boot_line"]

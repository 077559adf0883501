# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carry out a plan as one transaction: journal, write, verify; or undo everything."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _atoms, _journal, _reload
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._journal import Entry, Journal, Step
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._plan import Plan
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import State, TuningError

CUT_SHORT = "the last run of this host was cut short; what it had changed is undone first"


def apply(host: Host, plan: Plan) -> None:
    """Make the plan true, with the originals durable on disk before the first write."""
    if plan.steps:
        _begin(host, plan)
    try:
        for steps in (plan.reversible, plan.one_way):
            for step in steps:
                _atoms.write(host, step.atom, step.after, step.folders)
            _verify(host, steps)
        for one in plan.releases:
            if not one.kept:
                _atoms.forget(host, one.atom, one.entry.folders)
        if plan.changes or plan.before.foreign:
            _journal.save(host, plan.after)
    except TuningError as error:
        raise TuningError(f"{error}; {_undo(host, plan)}") from error


def _begin(host: Host, plan: Plan) -> None:
    try:
        _journal.save(host, replace(plan.before, transaction=plan.steps))
    except TuningError as error:
        with suppress(TuningError):  # if even this fails, the next run finds a transaction of which nothing was written
            _journal.save(host, replace(plan.before, transaction=()))
        raise TuningError(f"{error}; without a journal nothing is changed") from error


def _verify(host: Host, steps: Sequence[Step]) -> None:
    """Read everything again; a value that a later write moved is written once more before it counts as a failure."""
    for step in steps:
        if not _reached(step, _atoms.read(host, step.atom)):
            _atoms.write(host, step.atom, step.after, step.folders)
    for step in steps:
        now = _atoms.read(host, step.atom)
        if not _reached(step, now):
            raise TuningError(
                f"{step.atom.key}: was given {_atoms.show(step.after)}, but the host now says {_atoms.show(now)}"
            )


def _reached(step: Step, now: State) -> bool:
    """Tell whether the write took effect; what follows our files and is given back has any value they leave it."""
    return now == step.after or (step.after is None and _atoms.follows(step.atom))


def _undo(host: Host, plan: Plan) -> str:
    """Return every atom to its state before this call, and say so."""
    _backwards(host, plan.steps, plan.before)
    failed = _backwards(
        host, plan.steps, plan.before
    )  # once more: giving one value back can move another (THP, min_free_kbytes)
    try:
        if not failed:
            _journal.save(host, replace(plan.before, transaction=()))
    except TuningError as error:
        failed.append(str(error))
    if failed:
        return f"and not all could be undone ({'; '.join(failed)}): the journal keeps it, and the next run tries again"
    return "everything that this call had changed is back in its state before it"


def _order(steps: Sequence[Step]) -> list[Step]:
    """Return the steps in the order of undoing: the last first, but what follows our files after these."""
    last = [step for step in steps if _atoms.follows(step.atom)]
    return [*(step for step in reversed(steps) if step not in last), *last]


def _backwards(host: Host, steps: Sequence[Step], before: Journal) -> list[str]:
    """Undo the steps, whatever becomes of each; return what went wrong."""
    failed = []
    for step in _order(steps):
        try:
            if _atoms.read(host, step.atom) != step.before or (step.folders and step.before is None):
                _atoms.write(host, step.atom, step.before, step.folders)
            if step.atom not in before.entries:
                _atoms.forget(host, step.atom, step.folders)
        except TuningError as error:
            failed.append(str(error))
    return failed


def recover(host: Host, journal: Journal, reload: str) -> tuple[Journal, tuple[str, ...]]:
    """Undo a run that was cut short; what somebody has changed since is left alone and named."""
    host.sweep(_journal.PATH)
    host.commands.refresh()
    if not journal.transaction:
        return journal, ()
    entries, left = dict(journal.entries), [CUT_SHORT]
    waits = _reload.obstacle(host, reload, [step.atom for step in journal.transaction])
    for step in _order(journal.transaction):
        if not _take_back(host, step, waits):
            entries.setdefault(step.atom, Entry(step.set_name, step.before, step.after, folders=step.folders))
            reason = (
                waits if waits and _atoms.follows(step.atom) else "was changed by somebody else, so it is left alone"
            )
            left.append(f"{step.atom.key}: after a run was cut short, it {reason}")
        elif step.atom not in journal.entries:
            _atoms.forget(host, step.atom, step.folders)
    journal = replace(journal, entries=entries, transaction=())
    _journal.save(host, journal)
    return journal, tuple(left)


def _take_back(host: Host, step: Step, waits: str | None) -> bool:
    """Undo one step of a run that was cut short; tell whether it is back."""
    if step.atom.kind == _atoms.FILE:
        host.sweep(step.atom.key)
    now = _atoms.read(host, step.atom)
    untouched = now == step.before
    if _atoms.follows(step.atom) and not untouched:
        if waits is None:
            _atoms.write(host, step.atom, None)
        return waits is None
    on_the_way = (step.after, *_atoms.passing(host, step.atom, (step.before, step.after)))
    if (now in on_the_way and not untouched) or (untouched and now is None and step.atom.kind == _atoms.FILE):
        _atoms.write(host, step.atom, step.before, step.folders)
        return True
    return untouched or (now is None and step.atom.kind != _atoms.FILE)

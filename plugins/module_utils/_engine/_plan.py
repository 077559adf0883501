# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a call: the writes that make the sets true, in order, and the journal as it will be afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.gpu_fleet.node.plugins.module_utils import _kinds
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _atoms, _release, _reload
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._decide import Decision, decide
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._journal import Entry, Journal, Step
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._release import Release
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._request import Request
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._views import observe
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import KINDS
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Atom, Content, Setting, State, TuningError


@dataclass(frozen=True)
class Plan:
    """All that a call is going to do; nothing in it touches the host."""

    decisions: tuple[Decision, ...]
    releases: tuple[Release, ...]
    reversible: tuple[Step, ...]
    one_way: tuple[Step, ...]  # written when all else is done and verified, since nothing can undo them
    before: Journal
    after: Journal
    waiting: Mapping[Atom, str] = field(default_factory=dict)  # why a held setting is not in force everywhere yet

    @property
    def restarts(self) -> tuple[str, ...]:
        """Return the services to start again once all is done: told so, and running with another value."""
        late = (one for one in self.decisions if one.held and one.view.running and one.view.atom not in self.waiting)
        return tuple(sorted({one.view.setting.key.split()[0] for one in late}))

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return all writes, in order."""
        return self.reversible + self.one_way

    @property
    def changes(self) -> bool:
        """Tell whether the host, or what we know of its originals, will differ."""
        return bool(self.steps) or bool(self.restarts) or self.after.entries != self.before.entries


def plan(host: Host, wanted: Request, journal: Journal) -> Plan:
    """Read the host and plan the call."""
    host.commands.refresh()
    wanted = replace(wanted, settings=_kinds.resolve(host, wanted.settings))
    _owners(wanted, journal)
    decisions = tuple(decide(view) for view in observe(host, wanted, journal))
    waits = _reload.obstacle(host, wanted.reload, [*(one.view.atom for one in decisions), *journal.entries])
    live = [_hold(host, one, waits) for one in decisions if one.held]
    files = _files(host, decisions, journal)
    held = {step.atom: (step, entry) for step, entry in (*live, *files)}
    free = {
        atom: entry for atom, entry in journal.entries.items() if entry.set_name in wanted.names and atom not in held
    }
    order = sorted(free, key=lambda atom: (-_atoms.rank(atom), atom.key))
    releases = tuple(_release.release(host, atom, free[atom], wanted.force, waits) for atom in order)
    writes = [one.step for one in releases if one.step is not None]
    writes += [step for step, entry in held.values() if step.before != step.after and not entry.one_way]
    writes.sort(key=lambda step: _atoms.follows(step.atom))
    last = [step for step, entry in held.values() if step.before != step.after and entry.one_way]
    entries = {atom: entry for atom, entry in journal.entries.items() if atom not in free}
    entries.update({one.atom: one.entry for one in releases if one.kept})
    entries.update({atom: entry for atom, (step, entry) in held.items()})
    after = replace(journal, entries=entries, transaction=(), foreign=None)
    return Plan(decisions, releases, tuple(writes), tuple(last), journal, after, _waiting(decisions, waits))


def _waiting(decisions: Sequence[Decision], waits: str | None) -> dict[Atom, str]:
    """Return what is stored, but not yet in force for everything that runs."""
    found = {}
    for one in decisions:
        if one.held and one.view.live is not None:
            late = waits if _atoms.follows(one.view.atom) and not one.true_now else None
            reason = late or (None if one.view.setting.restart else one.view.running)
            if reason is not None:
                found[one.view.atom] = reason
    return found


def _owners(wanted: Request, journal: Journal) -> None:
    for setting in wanted.settings:
        entry = journal.entries.get(Atom(setting.kind, KINDS[setting.kind].place(setting)))
        if entry is not None and entry.set_name not in wanted.names:
            raise TuningError(
                f"{setting.key}: belongs to the set {entry.set_name} on this host, not to {setting.set_name}; "
                f"take it out of one of them, or name both sets in one call to move it"
            )


def _hold(host: Host, one: Decision, waits: str | None) -> tuple[Step, Entry]:
    """Return the write of a live value (none where before equals after) and its entry."""
    view, entry = one.view, one.view.entry
    after = view.live if one.true_now or (waits and _atoms.follows(view.atom)) else one.live
    name, one_way = view.setting.set_name, view.setting.one_way
    made = KINDS[view.atom.kind].made(host, view.atom.key) if entry is None else entry.folders
    step = Step(view.atom, view.live, after if view.live is not None else None, name, made)
    if entry is None:
        return step, Entry(name, view.live, after, view.live is not None, one_way, made)
    kept_floor = one.true_now and view.setting.rule == "at_least"
    return step, replace(entry, set_name=name, applied=entry.applied if kept_floor else after, one_way=one_way)


def _files(host: Host, decisions: Sequence[Decision], journal: Journal) -> list[tuple[Step, Entry]]:
    """Return the write of each file of ours and its entry."""
    groups: dict[tuple[str, str], list[Setting]] = {}
    for one in decisions:
        if one.held and one.stored is not None:
            setting = replace(one.view.setting, value=one.stored)
            groups.setdefault((setting.set_name, setting.kind), []).append(setting)
    found: dict[str, tuple[Step, Entry]] = {}
    for (name, kind), settings in groups.items():
        for path, content in KINDS[kind].files(settings).items():
            if path in found:
                raise TuningError(f"{path}: is declared by the set {name} and by another one; declare it once")
            found[path] = _file(host, path, content, name, journal)
    return list(found.values())


def _made_before(path: str, journal: Journal) -> tuple[str, ...]:
    """Return the folders that were made for another file of ours beside this one: the last to go takes them along."""
    beside = (entry.folders for atom, entry in journal.entries.items() if atom.kind == _atoms.FILE and atom.key != path)
    return next((made for made in beside if made and path.rpartition("/")[0] == made[0]), ())


def _file(host: Host, path: str, content: Content, set_name: str, journal: Journal) -> tuple[Step, Entry]:
    atom, after = Atom(_atoms.FILE, path), replace(host.fresh(content.text), mode=content.mode)
    before: State = host.state(path)
    folders = host.missing_folders(path) or _made_before(path, journal)
    entry = journal.entries.get(atom) or Entry(set_name, before, after, folders=folders)
    return Step(atom, before, after, set_name, folders), replace(entry, set_name=set_name, applied=after)

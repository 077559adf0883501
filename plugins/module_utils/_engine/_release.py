# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take a setting back: the recorded original returns, unless somebody else has changed the value since."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _atoms
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._journal import Entry, Step
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import KINDS
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Atom, State

UNTIL_REBOOT = "only a reboot takes it back"
NEVER_SEEN = "its original was never seen on this machine, so only a reboot takes it back"


@dataclass(frozen=True)
class Release:
    """What becomes of one atom that is not declared any more."""

    atom: Atom
    entry: Entry
    step: Step | None = None
    kept: bool = False  # the entry stays in the journal, since the original is not back
    pending: str | None = None
    left: str | None = None  # why the value is left as somebody else made it
    obstacle: str | None = None


def _gone(host: Host, atom: Atom, entry: Entry) -> Release:
    """Forget what this host has no more, but not what is there and may not even be read."""
    hidden = KINDS[atom.kind].obstacle(host, atom.key, str(entry.original))
    kept = hidden not in (None, KINDS[atom.kind].MISSING)
    return Release(atom, entry, kept=kept, obstacle=hidden if kept else None)


def _unread(atom: Atom, entry: Entry, now: State, waits: str | None) -> Release:
    """Let the manager read its files without ours, which give the value whatever they say."""
    if waits is not None:
        return Release(atom, entry, kept=True, pending=waits)
    return Release(atom, entry, Step(atom, now, None, entry.set_name))


def release(host: Host, atom: Atom, entry: Entry, force: bool, waits: str | None = None) -> Release:
    """Plan the return of the original; `waits` says why what follows our files has to keep them in mind for now."""
    if atom.kind in KINDS and KINDS[atom.kind].NO_LIVE is not None:
        return Release(atom, entry)
    known = entry.known or _atoms.follows(atom)
    if atom.kind != _atoms.FILE and not (host.live and known):
        return Release(atom, entry, pending=NEVER_SEEN if host.live else UNTIL_REBOOT)
    now = _atoms.read(host, atom)
    if now == entry.original:
        return Release(atom, entry)
    if now is None and atom.kind in KINDS:
        return _gone(host, atom, entry)
    if _atoms.follows(atom):
        return _unread(atom, entry, now, waits)
    if entry.one_way:
        return Release(atom, entry, kept=True, pending=UNTIL_REBOOT)
    if now != entry.applied and not force:
        left = (
            f"{atom.key}: holds {_atoms.show(now)}, which is neither what the set {entry.set_name} gave it "
            f"({_atoms.show(entry.applied)}) nor its original ({_atoms.show(entry.original)}), so it is left alone; "
            f"use force to give the original back"
        )
        return Release(atom, entry, kept=True, left=left)
    obstacle = KINDS[atom.kind].obstacle(host, atom.key, str(entry.original)) if atom.kind in KINDS else None
    if obstacle is not None:
        return Release(atom, entry, kept=True, obstacle=obstacle)
    return Release(atom, entry, Step(atom, now, entry.original, entry.set_name, entry.folders))

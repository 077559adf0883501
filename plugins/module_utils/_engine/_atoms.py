# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and write an atom, whatever it is: a live value through its kind, or a file."""

from __future__ import annotations

import stat
from collections.abc import Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils import _manager
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import KINDS
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Atom, FileState, State

FILE = "file"


def rank(atom: Atom) -> int:
    """Return where the atom stands in the order of application; a file of ours follows the live values."""
    return KINDS[atom.kind].RANK if atom.kind in KINDS else max(kind.RANK for kind in KINDS.values()) + 1


def follows(atom: Atom) -> bool:
    """Tell whether a live atom takes its state from our files, so that it comes last in either direction."""
    return atom.kind in KINDS and KINDS[atom.kind].follows(atom.key)


def read(host: Host, atom: Atom) -> State:
    """Return what the atom holds now, None where there is nothing."""
    if atom.kind == FILE:
        return host.state(atom.key)
    return KINDS[atom.kind].live(host, atom.key) if host.live else None


def write(host: Host, atom: Atom, state: State, folders: tuple[str, ...] = ()) -> None:
    """Make the atom hold this state; a file taken away leaves none of the `folders` that were made for it."""
    if isinstance(state, FileState):
        host.replace(atom.key, state)
    elif atom.kind == FILE:
        host.remove(atom.key)
        for folder in folders:
            host.prune(folder)
    elif state is not None:
        KINDS[atom.kind].write(host, atom.key, state)
    elif follows(atom):
        _manager.reload(host)


def passing(host: Host, atom: Atom, states: Sequence[State]) -> tuple[State, ...]:
    """Return what the atom may hold for a moment while it is given one of these states."""
    texts = [state for state in states if isinstance(state, str)]
    if atom.kind not in KINDS:
        return ()
    return tuple(one for text in texts for one in KINDS[atom.kind].passing(host, atom.key, text))


def forget(host: Host, atom: Atom, made: tuple[str, ...]) -> None:
    """Remove what writing a live atom had left besides, once the atom is not ours any more."""
    if atom.kind == FILE and host.mode(atom.key) is not None:
        return
    for path in made:
        if stat.S_ISDIR(host.mode(path) or stat.S_IFDIR):
            host.prune(path)
        else:
            host.remove(path)


def show(state: State) -> str:
    """Return a state the way a person reads it in a message."""
    if state is None:
        return "nothing"
    if isinstance(state, str):
        return state
    return f"a link to {state.link}" if state.link is not None else f"a file of {len(state.content)} bytes"

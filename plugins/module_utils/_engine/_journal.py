# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal: the originals of all that we changed, on the host itself, durable before the first change."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import KINDS
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Atom, FileState, State, TuningError

FOLDER = "/var/lib/gpu-fleet"
PATH = f"{FOLDER}/journal.json"
VERSION = 1


@dataclass(frozen=True)
class Entry:
    """An atom that is ours: whose set, what was there before us, what we gave it."""

    set_name: str
    original: State
    applied: State
    known: bool = True  # False: the original was never seen (an image) or was another machine's (a clone)
    one_way: bool = False
    folders: tuple[str, ...] = ()  # made for this file, the deepest first


@dataclass(frozen=True)
class Step:
    """One write of a transaction, with all that is needed to undo it."""

    atom: Atom
    before: State
    after: State
    set_name: str
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class Journal:
    """What the host knows about us; `transaction` is there only while a run is at work, or was cut short."""

    machine: str
    entries: Mapping[Atom, Entry] = field(default_factory=dict)
    transaction: tuple[Step, ...] = ()
    foreign: str | None = None  # the machine that wrote it, when that is not this one


def load(host: Host) -> Journal:
    """Return the journal of this host; one that cannot be understood stops the run and is left as it is."""
    machine = (host.read("/etc/machine-id") or "").strip()
    text = host.read(PATH)
    if text is None:
        return Journal(machine)
    try:
        journal = _decode(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TuningError(
            f"{PATH}: is not a journal that this version understands ({type(error).__name__}: {error}), so nothing was "
            f"changed; restore it from a backup, or move it away to give up the recorded originals"
        ) from error
    return journal if journal.machine == machine else _adopt(journal, machine)


def _adopt(journal: Journal, machine: str) -> Journal:
    """Take over the journal of an image or a clone: files came along with the disk, kernel values did not."""
    entries = {
        atom: entry if atom.kind == "file" else replace(entry, original=None, known=False)
        for atom, entry in journal.entries.items()
    }
    steps = tuple(step for step in journal.transaction if step.atom.kind == "file")
    return Journal(machine, entries, steps, journal.machine or "an image")


def save(host: Host, journal: Journal) -> None:
    """Write the journal durably, or remove it when it says nothing any more."""
    if not journal.entries and not journal.transaction:
        host.remove(PATH)
        return
    text = json.dumps(_encode(journal), indent=1, sort_keys=True) + "\n"
    host.replace(PATH, replace(host.fresh(text.encode()), mode=0o600))


def _encode(journal: Journal) -> dict[str, Any]:
    return {
        "version": VERSION,
        "machine": journal.machine,
        "entries": [
            {
                "kind": atom.kind,
                "key": atom.key,
                "set": entry.set_name,
                "original": _pack(entry.original),
                "applied": _pack(entry.applied),
                "known": entry.known,
                "one_way": entry.one_way,
                "folders": list(entry.folders),
            }
            for atom, entry in sorted(journal.entries.items(), key=lambda pair: str(pair[0]))
        ],
        "transaction": [
            {
                "kind": step.atom.kind,
                "key": step.atom.key,
                "before": _pack(step.before),
                "after": _pack(step.after),
                "set": step.set_name,
                "folders": list(step.folders),
            }
            for step in journal.transaction
        ],
    }


def _decode(data: Mapping[str, Any]) -> Journal:
    if data["version"] != VERSION:
        raise ValueError(f"version {data['version']}, expected {VERSION}")
    if not isinstance(data["machine"], str) or not all(
        isinstance(data[name], list) for name in ("entries", "transaction")
    ):
        raise ValueError("machine, entries or transaction is of another type")
    entries = {}
    for row in data["entries"]:
        entries[_atom(row)] = Entry(
            row["set"],
            _unpack(row["original"]),
            _unpack(row["applied"]),
            row["known"],
            row["one_way"],
            tuple(row["folders"]),
        )
    steps = tuple(
        Step(
            _atom(row),
            _unpack(row["before"]),
            _unpack(row["after"]),
            row["set"],
            tuple(row["folders"]),
        )
        for row in data["transaction"]
    )
    return Journal(data["machine"], entries, steps)


def _atom(row: Mapping[str, Any]) -> Atom:
    """Return the atom of a row; one of a later version is not guessed at."""
    if row["kind"] not in (*KINDS, "file") or not isinstance(row["key"], str):
        raise ValueError(f"{row['kind']} {row['key']!r} is of an unknown kind")
    return Atom(row["kind"], row["key"])


def _pack(state: State) -> Any:
    if not isinstance(state, FileState):
        return state
    return {
        "content": base64.b64encode(state.content).decode(),
        "mode": state.mode,
        "uid": state.uid,
        "gid": state.gid,
        "link": state.link,
        "xattrs": {name: base64.b64encode(value).decode() for name, value in state.xattrs},
    }


def _unpack(data: Any) -> State:
    if data is None or isinstance(data, str):
        return data
    xattrs = tuple((name, base64.b64decode(value)) for name, value in sorted(data["xattrs"].items()))
    content = base64.b64decode(data["content"], validate=True)
    return FileState(content, data["mode"], data["uid"], data["gid"], data["link"], xattrs)

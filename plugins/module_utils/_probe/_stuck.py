# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remember, below /run, the children that could not be ended, so that the next run does not add one more."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import FileState, TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _process

FOLDER = "/run/gpu-fleet"
FILE = f"{FOLDER}/stuck-driver-calls.json"


@dataclass(frozen=True)
class Stuck:
    """A child of an earlier run that still waits inside the kernel, and what it was asked to do."""

    pid: int
    start: int
    command: str


def remember(host: Host, left: Sequence[_process.Process], command: str) -> str | None:
    """Add processes to the list; return why that was not possible, or None."""
    known = {(entry.pid, entry.start): entry for entry in standing(host)}
    known.update(((one.pid, one.start), Stuck(one.pid, one.start, command)) for one in left)
    return _save(host, list(known.values()))


def standing(host: Host) -> list[Stuck]:
    """Return those of the list that still live; none where there is no list or it is not ours to read."""
    try:
        text = host.read(FILE)
        entries = [Stuck(int(one["pid"]), int(one["start"]), str(one["command"])) for one in json.loads(text or "[]")]
    except (TuningError, ValueError, KeyError, TypeError):
        return []
    return [entry for entry in entries if _process.lives(entry.pid, entry.start)]


def tidy(host: Host) -> None:
    """Take the list away once nobody on it lives."""
    if host.mode(FILE) is not None and not standing(host):
        _save(host, [])


def _save(host: Host, entries: list[Stuck]) -> str | None:
    try:
        if entries:
            os.makedirs(host.at(FOLDER), 0o700, exist_ok=True)
            text = json.dumps([vars(entry) for entry in entries]) + "\n"
            host.replace(FILE, FileState(text.encode(), 0o600, os.geteuid(), os.getegid()))
        else:
            host.remove(FILE)
            host.prune(FOLDER)
    except TuningError as error:
        return str(error)
    except OSError as error:
        return f"{FOLDER}: cannot be made ({error.strerror})"
    return None

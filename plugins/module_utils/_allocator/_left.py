# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remember, below /run, the children of this module that could not be ended, so that the next run adds no more."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import FileState, TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _process

FOLDER = "/run/gpu-fleet"
FILE = f"{FOLDER}/stuck-allocator-facts.json"


def standing(host: Host) -> dict[str, list[int]]:
    """Return by source the processes of earlier runs that still live; none where there is no list to be read."""
    try:
        entries = json.loads(host.read(FILE) or "[]")
        living = [one for one in entries if _process.lives(int(one["pid"]), int(one["start"]))]
        found: dict[str, list[int]] = {}
        for one in living:
            found.setdefault(str(one["source"]), []).append(int(one["pid"]))
    except (TuningError, ValueError, KeyError, TypeError):
        return {}
    return found


def remember(host: Host, left: Sequence[tuple[str, int, int]]) -> str | None:
    """Keep the list of source, pid and start time for the next run; return why that was not possible, or None."""
    try:
        kept = [
            one for one in json.loads(host.read(FILE) or "[]") if _process.lives(int(one["pid"]), int(one["start"]))
        ]
    except (TuningError, ValueError, KeyError, TypeError):
        kept = []
    kept += [{"source": source, "pid": pid, "start": start} for source, pid, start in left]
    try:
        if kept:
            os.makedirs(host.at(FOLDER), 0o700, exist_ok=True)
            host.replace(FILE, FileState(json.dumps(kept).encode() + b"\n", 0o600, os.geteuid(), os.getegid()))
        elif host.mode(FILE) is not None:
            host.remove(FILE)
            host.prune(FOLDER)
    except (OSError, TuningError) as error:
        return f"{FILE}: cannot be written ({error})"
    return None

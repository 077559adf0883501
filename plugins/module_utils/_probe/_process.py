# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of this machine as the kernel lists them: who is whose child, and whether one still lives."""

from __future__ import annotations

import os
from dataclasses import dataclass

GONE = ("Z", "X", "x")  # dead, and only waiting to be collected


@dataclass(frozen=True)
class Process:
    """One process; its start time (clock ticks since boot) tells it from a later one with the same number."""

    pid: int
    start: int
    parent: int = 0
    group: int = 0
    session: int = 0
    state: str = "?"


def parse_stat(text: str) -> Process:
    """Read a line of /proc/PID/stat; the name in brackets may itself hold blanks and brackets."""
    number, _bracket, rest = text.partition(" (")
    words = rest.rpartition(")")[2].split()
    return Process(int(number), int(words[19]), int(words[1]), int(words[2]), int(words[3]), words[0])


def look_up(pid: int) -> Process | None:
    """Return the process with this number, or None where there is none (any more)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return parse_stat(stream.read())
    except OSError:
        return None


def lives(pid: int, start: int) -> bool:
    """Tell whether that very process still runs."""
    found = look_up(pid)
    return found is not None and found.start == start and found.state not in GONE


def family(pid: int) -> list[Process]:
    """Return a process with everything in its group and session and all that descends from it."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    every = [process for process in map(look_up, numbers) if process is not None and process.state not in GONE]
    members: dict[int, Process] = {}
    grown = True
    while grown:
        fresh = [
            process
            for process in every
            if process.pid not in members
            and (pid in (process.pid, process.group, process.session) or process.parent in members)
        ]
        members.update((process.pid, process) for process in fresh)
        grown = bool(fresh)
    return sorted(members.values(), key=lambda process: process.pid)

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The control groups of a process, version 1 and 2: their limits, their use and what they have refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

MOUNT = "/sys/fs/cgroup"
UNLIMITED = 1 << 60  # version 1 prints a huge number instead of a word


@dataclass(frozen=True)
class Level:
    """One folder of the hierarchy that a controller acts on."""

    path: str
    version: int

    @property
    def name(self) -> str:
        """Return the path as people write it: below the mount, without the controller."""
        parts = self.path[len(MOUNT) :].lstrip("/").split("/")
        return "/" + "/".join(parts[1:] if self.version == 1 else parts)


def text(path: str) -> str | None:
    """Return what a file says, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return None


def above(folder: str, version: int) -> list[Level]:
    """Return a folder and its parents up to the controller's root, the deepest first."""
    root = MOUNT if version == 2 else os.path.join(MOUNT, folder[len(MOUNT) :].lstrip("/").split("/")[0])
    levels = []
    while folder.startswith(root):
        levels.append(Level(folder, version))
        folder = os.path.dirname(folder)
    return levels


def levels(controller: str, pid: str = "self") -> list[Level]:
    """Return where a process stands for one controller, and the levels above; none where it cannot be seen."""
    second = None
    for line in (text(f"/proc/{pid}/cgroup") or "").splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(","):
            return above(_place(os.path.join(MOUNT, controller), path), 1)
        if number == "0" and not names:
            second = path
    if second is None or not os.path.exists(os.path.join(MOUNT, "cgroup.controllers")):
        return []
    return above(_place(MOUNT, second), 2)


def _place(root: str, path: str) -> str:
    """Return the folder; inside a container the path may be the one that the host sees."""
    folder = os.path.normpath(root + "/" + path)
    return folder if os.path.isdir(folder) else root


def number(path: str) -> int | None:
    """Return a number from a file; None where there is none or no limit."""
    word = (text(path) or "").strip()
    return int(word) if word.isdigit() and int(word) < UNLIMITED else None


def counters(path: str) -> dict[str, int]:
    """Return a file of names and numbers."""
    pairs = (line.split() for line in (text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def memory_limit(level: Level) -> int | None:
    """Return the memory limit of one level, or None."""
    return number(os.path.join(level.path, "memory.max" if level.version == 2 else "memory.limit_in_bytes"))


def memory_high(level: Level) -> int | None:
    """Return where one level starts to slow its processes down, or None; version 1 has no such thing."""
    return number(os.path.join(level.path, "memory.high")) if level.version == 2 else None


def memory_used(level: Level) -> int | None:
    """Return what one level is charged."""
    return number(os.path.join(level.path, "memory.current" if level.version == 2 else "memory.usage_in_bytes"))


def shared(level: Level) -> int | None:
    """Return the shared memory (pinned buffers are of this kind) that one level is charged."""
    found = counters(os.path.join(level.path, "memory.stat"))
    return found.get("shmem", found.get("total_shmem"))


def reclaimable(level: Level) -> int:
    """Return the file pages that the kernel drops before it refuses memory."""
    found = counters(os.path.join(level.path, "memory.stat"))
    prefix = "" if level.version == 2 else "total_"
    return found.get(prefix + "inactive_file", 0) + found.get(prefix + "active_file", 0)


def headroom(pid: str = "self") -> tuple[int, Level] | None:
    """Return the bytes until the tightest limit and the level that has it; None without a limit."""
    rooms: list[tuple[int, Level]] = []
    for level in levels("memory", pid):
        bounds = [bound for bound in (memory_limit(level), memory_high(level)) if bound is not None]
        if bounds:
            rooms.append((min(bounds) - (memory_used(level) or 0) + reclaimable(level), level))
    return min(rooms, key=lambda room: room[0], default=None)


def events(level: Level) -> dict[str, int]:
    """Return how often a level was over its high mark, at its limit, and had a process killed."""
    if level.version == 2:
        return counters(os.path.join(level.path, "memory.events"))
    control = counters(os.path.join(level.path, "memory.oom_control"))
    return {"max": number(os.path.join(level.path, "memory.failcnt")) or 0, "oom_kill": control.get("oom_kill", 0)}


def pids(pid: str = "self") -> Iterator[tuple[Level, int, int, int]]:
    """Yield each level with a limit on tasks: the level, the limit, the number in use, and the refusals so far."""
    for level in levels("pids", pid):
        bound = number(os.path.join(level.path, "pids.max"))
        if bound is not None:
            refused = counters(os.path.join(level.path, "pids.events")).get("max", 0)
            yield level, bound, number(os.path.join(level.path, "pids.current")) or 0, refused

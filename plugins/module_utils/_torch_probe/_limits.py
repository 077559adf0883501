# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of this process, and which of them a failure text points to."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass

from . import _cgroup

NAMES = {
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "memlock": resource.RLIMIT_MEMLOCK,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
    "as": resource.RLIMIT_AS,
}
FILES = re.compile(r"Too many open files|received 0 items of ancdata|Errno 24|\(24\)")
SHARED = re.compile(r"Bus error|No space left on device|\(28\)|insufficient shared memory|unable to (?:write|resize)")
TASKS = re.compile(r"can't start new thread|Resource temporarily unavailable|Errno 11\b|BlockingIOError|pthread_create")
OPENING = re.compile(r"unable to open shared memory object")
MEMORY = re.compile(r"Cannot allocate memory|Errno 12\b|MemoryError|not enough memory|DefaultCPUAllocator")
KILLED = re.compile(r"killed by signal: Killed|signal 9|exited unexpectedly")


@dataclass(frozen=True)
class Cause:
    """The limit behind a failure and what to do about it."""

    limit: str
    text: str
    action: str


@dataclass(frozen=True)
class Mark:
    """What the limits had refused at one moment, so that a later look tells what happened since."""

    killed: dict[_cgroup.Level, int]
    refused: dict[_cgroup.Level, int]


def rlimit(name: str) -> tuple[str, str]:
    """Return the soft and the hard limit as people write them."""
    soft, hard = resource.getrlimit(NAMES[name])
    return _word(soft), _word(hard)


def _word(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def open_files() -> int:
    """Return how many descriptors this process holds."""
    return len(os.listdir("/proc/self/fd"))


def shared_memory() -> tuple[int, int]:
    """Return size and free bytes of /dev/shm."""
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return 0, 0
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def mark() -> Mark:
    """Look at the counters of refusals."""
    killed = {level: _cgroup.events(level).get("oom_kill", 0) for level in _cgroup.levels("memory")}
    return Mark(killed, {level: refused for level, _bound, _used, refused in _cgroup.pids()})


def explain(text: str, before: Mark, used_files: int) -> Cause:
    """Return the limit that a failure text means, with the figures of this process."""
    now = mark()
    for level, count in now.killed.items():
        if count > before.killed.get(level, 0):
            bound = _cgroup.memory_limit(level)
            rose = count - before.killed.get(level, 0)
            words = f"a worker was killed by the limit of {level.name}: {bound} bytes (oom_kill rose by {rose})"
            return Cause(
                "cgroup memory",
                words,
                f"raise the memory limit of {level.name}, or use fewer workers or smaller batches",
            )
    for level, count in now.refused.items():
        if count > before.refused.get(level, 0):
            bound = _cgroup.number(os.path.join(level.path, "pids.max"))
            return Cause("pids", f"pids limit of {level.name}: {bound}", f"raise TasksMax (pids.max) of {level.name}")
    return _from_text(text, used_files)


def _from_text(text: str, used_files: int) -> Cause:
    soft, hard = rlimit("nofile")
    size, free = shared_memory()
    near = soft != "unlimited" and used_files > 0.8 * int(soft)
    if FILES.search(text) or (OPENING.search(text) and not SHARED.search(text) and near):
        words = f"open files limit: soft {soft}, hard {hard}, in use {used_files}"
        return Cause(
            "nofile", words, "raise the soft limit nofile for the jobs (limits.d for logins, LimitNOFILE for services)"
        )
    if SHARED.search(text) or OPENING.search(text):
        words = f"/dev/shm: {size >> 20} MiB in all, {free >> 20} MiB free"
        return Cause(
            "/dev/shm",
            words,
            "enlarge /dev/shm (containers: --ipc=host or --shm-size), or use fewer workers or smaller batches",
        )
    if TASKS.search(text):
        return Cause("nproc", _tasks(), "raise nproc (limits.d) or TasksMax (pids.max) for the jobs")
    if MEMORY.search(text):
        room = _cgroup.headroom()
        where = (
            f"{room[1].name} leaves {room[0] >> 20} MiB" if room else "no cgroup limit, so the machine itself is short"
        )
        return Cause(
            "memory", f"memory: {where}", "raise the memory limit of the slice, or use fewer workers or smaller batches"
        )
    if KILLED.search(text):
        return Cause(
            "killed", "a worker was killed from outside", "look for who killed it (kernel log, an operator, a watchdog)"
        )
    return Cause("unknown", text.strip()[-300:], "see the text of the failure")


def _tasks() -> str:
    soft, hard = rlimit("nproc")
    groups = [f"pids limit of {level.name}: {bound}, in use {used}" for level, bound, used, _refused in _cgroup.pids()]
    return "; ".join([f"nproc limit: soft {soft}, hard {hard}", *groups])

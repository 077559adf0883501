# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say why the probe did not finish: who killed it, which limit slowed it down, or that it hung."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._child import Run
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._model import Row, row
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe import _cgroup

CONSTRAINT = re.compile(
    r"oom-kill:constraint=(?P<kind>\w+),.*?(?:oom_memcg=(?P<group>[^,]+),)?.*task=(?P<task>[^,]*),pid=(?P<pid>\d+)"
)
LIBRARY = re.compile(r"error while loading shared libraries|ModuleNotFoundError|ImportError|Traceback")
Counts = dict[_cgroup.Level, dict[str, int]]


class KernelLog:
    """What the kernel says from now on; empty where it may not be read."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        """Open the log at its end."""
        self._descriptor = -1
        with suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def lines(self) -> list[str]:
        """Return the records since the opening, and close the log."""
        found: list[str] = []
        if self._descriptor < 0:
            return found
        for _record in range(10_000):
            try:
                data = os.read(self._descriptor, 8192)
            except BrokenPipeError:  # records were overwritten before we read them
                continue
            except OSError:
                break
            if not data:
                break
            found.append(data.decode(errors="replace").partition(";")[2].splitlines()[0])
        os.close(self._descriptor)
        self._descriptor = -1
        return found


@dataclass(frozen=True)
class Evidence:
    """What changed while the probe ran."""

    before: Counts
    after: Counts
    log: Sequence[str]

    def rise(self, event: str) -> tuple[int, _cgroup.Level] | None:
        """Return by how much an event rose and at which level: the deepest with a limit, else the deepest."""
        found = []
        for level, now in self.after.items():
            count = now.get(event, 0) - self.before.get(level, {}).get(event, 0)
            if count > 0:
                found.append((count, level))
        limited = [
            pair
            for pair in found
            if _cgroup.memory_limit(pair[1]) is not None or _cgroup.memory_high(pair[1]) is not None
        ]
        return next(iter(limited or found), None)


def counts(levels: Sequence[_cgroup.Level]) -> Counts:
    """Return the counters of all watched levels."""
    return {level: _cgroup.events(level) for level in levels}


def explain(run: Run, evidence: Evidence) -> Row:
    """Return the row for the check that was at work."""
    check = run.running if run.running not in ("import", "between", "") else "probe"
    where = {"import": "while torch was imported", "between": "between two checks"}.get(
        run.running, f"during {run.running}"
    )
    status, observed, reason, action = _why(run, evidence)
    left = f"; process {', '.join(map(str, run.left))} cannot be ended" if run.left else ""
    return row(
        check, check, status, observed=observed, expected="an end", reason=f"{where}: {reason}{left}", action=action
    )


def _why(run: Run, evidence: Evidence) -> tuple[str, str, str, str]:
    killed = _killed(run, evidence)
    if killed:
        return ("fail", "killed", *killed)
    high = evidence.rise("high")
    if run.late and high:
        bound = _cgroup.memory_high(high[1])
        reason = f"throttled by memory.high of {high[1].name} ({bound} bytes): high in memory.events rose by {high[0]}"
        return (
            "fail",
            "throttled",
            reason,
            f"raise MemoryHigh of {high[1].name}, or set MemoryMax above it, so that a job ends instead of crawling",
        )
    if run.late:
        limit = "the time limit of this check" if run.late == "check" else "the time limit of the whole test"
        return (
            "fail",
            "hung",
            f"no end within {limit}",
            "look at the kernel log (Xid, hung tasks) and nvidia-smi; raise the limit if the host is only slow",
        )
    return _exited(run)


def _killed(run: Run, evidence: Evidence) -> tuple[str, str] | None:
    """Tell the OOM killer of a control group from that of the machine; the kernel log is the better witness."""
    rose = evidence.rise("oom_kill")
    record = next((found for line in reversed(evidence.log) if (found := CONSTRAINT.search(line))), None)
    if record is not None and (rose or run.code == -signal.SIGKILL) and not run.late:
        if record["kind"] == "CONSTRAINT_MEMCG":
            group = record["group"] or (rose[1].name if rose else "its control group")
            return _by_group(group, rose)
        victim = f"process {record['pid']}, {record['task']}"
        words = f"killed by the OOM killer of the machine ({victim}): the host itself was out of memory"
        return words, "find what fills the host's memory; give the jobs a slice with a limit below the host's memory"
    return _by_group(rose[1].name, rose) if rose else None


def _by_group(name: str, rose: tuple[int, _cgroup.Level] | None) -> tuple[str, str]:
    bound = _cgroup.memory_limit(rose[1]) if rose else None
    figures = f" ({bound} bytes; oom_kill rose by {rose[0]})" if rose else ""
    return (
        f"killed by the memory limit of {name}{figures}",
        f"raise MemoryMax of {name}, or let the jobs there use less",
    )


def _exited(run: Run) -> tuple[str, str, str, str]:
    said = run.errors.splitlines()[-1][:300] if run.errors else "no message"
    if (run.code is not None and run.code < 0) or (run.code or 0) > 128:
        number = -run.code if run.code and run.code < 0 else (run.code or 0) - 128
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        if name == "SIGBUS":
            return (
                "fail",
                name,
                f"bus error: /dev/shm or a mapped file is full; {said}",
                "enlarge /dev/shm (containers: --ipc=host or --shm-size)",
            )
        if name == "SIGKILL":
            return (
                "fail",
                name,
                "killed from outside, not by the OOM killer",
                "look for who killed it: an operator, a watchdog, a batch system",
            )
        return (
            "fail",
            name,
            f"crashed with {name}; {said}",
            "look at the kernel log (Xid, segfault) and run the check alone",
        )
    if run.running == "import" and LIBRARY.search(run.errors):
        return (
            "unknown",
            "no torch",
            f"torch cannot be imported: {said}",
            "repair the interpreter, or name another one (validate_memory_python)",
        )
    return (
        "unknown",
        f"exit status {run.code}",
        f"the probe ended early: {said}",
        "see the message; run the check alone",
    )

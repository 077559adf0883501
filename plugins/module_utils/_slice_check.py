# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove a slice: let a small hog run into a limit below it, and see that only the hog dies."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _cgroup, _commands
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _oom
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _kernel_log

Row = dict[str, Any]
Runner = _commands.Runner
MIB = 1 << 20
HOG = "held = []\nfor _piece in range({pieces}): held.append(bytearray(1 << 20))\n"
ACTION = "look at the control groups of the host: memory limits of this slice do not hold"


def check(host: Host, name: str, mib: int, run: Runner = _commands.start) -> list[Row]:
    """Return what became of hog and neighbour; nothing of either stays."""
    if not name.endswith(".slice") or name.rpartition(".")[0].endswith("-"):
        raise TuningError(f"slice {name!r}: is not the name of one slice, expected one like gpu-jobs.slice")
    if _cgroup.version(host) is None:
        raise TuningError(f"slice {name}: no cgroup hierarchy of this host has the memory controller")
    neighbour = f"gpu-fleet-neighbour-{os.getpid()}.service"
    _start(run, ["systemd-run", "--quiet", "--collect", f"--unit={neighbour}", f"--slice={name}", "sleep", "120"])
    try:
        before, began = (main_pid(run, neighbour), counted(host, name)), time.time()
        told = _hog(run, name, mib)
        after = main_pid(run, neighbour), counted(host, name)
        return _rows(host, name, (told, began), (before, after))
    finally:
        run(["systemctl", "stop", neighbour])


def _start(run: Runner, words: Sequence[str]) -> None:
    status, text = run(words)
    if status:
        raise TuningError(f"{words[0]}: exit status {status} ({(text.strip().splitlines() or ['no message'])[-1]})")


def _hog(run: Runner, name: str, mib: int) -> str:
    """Run a process that takes four times what its own group, below the slice, may have."""
    unit = f"--unit=gpu-fleet-hog-{os.getpid()}.service"
    limits = [f"--property=MemoryMax={mib}M", "--property=MemorySwapMax=0", "--property=RuntimeMaxSec=60"]
    code = HOG.format(pieces=4 * mib)
    _status, text = run(
        ["systemd-run", "--wait", "--collect", unit, f"--slice={name}", *limits, sys.executable, "-IS", "-c", code]
    )
    return text


def main_pid(run: Runner, unit: str) -> str:
    """Return the process of a service; 0 for none."""
    return run(["systemctl", "show", "--property=MainPID", "--value", "--", unit])[1].strip()


def counted(host: Host, name: str) -> int | None:
    """Return the kills below the slice that version 2 has counted; version 1 counts for each group alone."""
    found = _cgroup.folder(host, "memory")
    if found is None or found[0] == 1:
        return None
    text = host.glance(f"{found[1]}{_cgroup.path(name)}/memory.events") or ""
    rows = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
    return int(rows["oom_kill"]) if "oom_kill" in rows else None


def _rows(
    host: Host, name: str, hog: tuple[str, float], neighbour: tuple[tuple[str, int | None], tuple[str, int | None]]
) -> list[Row]:
    """Judge the end of the hog, what the kernel says of it, and the neighbour."""
    (told, began), ((pid, old), (still, new)) = hog, neighbour
    # With version 1 systemd does not hear of the kernel's reason, and sees a process that was killed.
    wanted, sign = ("killed", "KILL") if _cgroup.version(host) == 1 else ("oom-kill", "oom-kill")
    result = wanted if sign in told else (told.strip().splitlines() or ["no message"])[-1]
    rows = [row("hog", result == wanted, result, wanted, f"systemd's word on a process below {name}")]
    if old is not None and new is not None:
        rows.append(row("counted", new - old == 1, new - old, 1, f"oom_kill of memory.events of {name}"))
    records, reason = _kernel_log.read(host)
    if reason is None:
        since = [one for one in _oom.kills(records) if one["when"] is not None and one["when"] >= began - 2]
        inside = [one for one in since if f"{_cgroup.path(name)}/" in str(one["task_group"] or one["limit_group"])]
        rows.append(row("kernel_log", len(inside) == 1 and len(since) == 1, len(since), 1, "kills in the kernel log"))
    elif old is None:
        rows.append({**row("kernel_log", False, None, 1, reason), "status": "unknown"})
    rows.append(row("neighbour", pid == still != "0", still, pid, f"process of another service in {name}"))
    return [{**one, "name": f"{name}.{one['name']}"} for one in rows]


def row(name: str, good: bool, observed: Any, expected: Any, source: str) -> Row:
    """Return a row in the shape of the smoke test's."""
    status = "pass" if good else "fail"
    action = "" if good else ACTION
    return {
        "name": name, "status": status, "observed": observed, "expected": expected, "threshold_source": source,
        "action": action,
    }  # fmt: skip

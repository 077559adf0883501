# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Enter a systemd slice: this very process becomes a scope in it, so nothing stands between it and the command."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _programs
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._defaults import is_slice
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import RefusalError
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _child

PATIENCE = 10.0
TICK = 0.005
MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
# Control groups of those who give out GPUs and count memory: who leaves them escapes their limits.
TAKEN = re.compile(r"/(?:slurm|kubepods|docker[-/]|libpod|crio-|cri-containerd|pbs|htcondor|lsf[-/]|flux[-/])[^/\n]*")
INIT = "/init.scope"  # where systemd puts itself, below its root
ENTER, PID = "--enter=", "--pid="


def enter(name: str, program: str, root: str = "/") -> str | None:
    """Enter the slice and return None, or return why that was not possible."""
    if not is_slice(name):
        raise RefusalError(f"--slice {name}: is not the name of a slice, expected one like gpu-jobs.slice", 2)
    if inside(name, root):
        return None
    if os.geteuid() == 0:
        reason = adopt(name, os.getpid(), root)
    else:
        # pkexec refuses to start with some values of the caller's variables, and none of them matters to it.
        words = ["pkexec", "--disable-internal-agent", program, f"{ENTER}{name}", f"{PID}{os.getpid()}"]
        reason = _run(words, {"PATH": os.environ.get("PATH", os.defpath)})
    return reason or (None if _wait(name, root) else "systemd has not moved this process")


def adopt(name: str, pid: int, root: str = "/") -> str | None:
    """Make a scope of one process in a slice; return why that failed."""
    taken = TAKEN.search(_below(_groups(root, pid), _groups(root, 1)))
    if taken:
        return f"the process is in the control group {taken[0][1:]} of a scheduler or container"
    call = ("busctl", "--system", "call", *MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))")
    unit = (f"gpu-run-{pid}.scope", "fail", "3", "PIDs", "au", "1", str(pid), "Slice", "s", name)
    return _run((*call, *unit, "CollectMode", "s", "inactive-or-failed", "0"))


def enter_for_user(words: Sequence[str], allowed: str, root: str = "/") -> None:
    """Do it for the user who asked through pkexec: the administrator's slice, and a process of that user, only."""
    uid, name = os.environ.get("PKEXEC_UID", ""), words[0][len(ENTER) :]
    pid = words[1][len(PID) :] if len(words) == 2 and words[1].startswith(PID) else ""
    if os.geteuid() != 0 or not uid.isdigit() or not pid.isdigit():
        raise RefusalError("--enter: is for pkexec, which gpu-run calls itself", 2)
    if not allowed or name != allowed:
        raise RefusalError(f"{ENTER}{name}: is not the slice of this host's jobs ({allowed or 'none is set'})", 2)
    try:
        owner = os.stat(f"{root.rstrip('/')}/proc/{pid}").st_uid
    except OSError:
        owner = -1
    if owner != int(uid):
        raise RefusalError(f"{PID}{pid}: is not a process of the user who asks", 2)
    reason = adopt(name, int(pid), root)
    if reason is not None:
        raise RefusalError(reason)


def inside(name: str, root: str = "/") -> bool:
    """Tell whether this process is in the slice already."""
    return f"/{name}/" in _groups(root, "self")


def _below(groups: str, manager: str) -> str:
    """Return the control groups as the manager names them: one that runs in a container has its own root there."""
    tops = {
        tuple(line.split(":", 2)[:2]): line.split(":", 2)[2] for line in manager.splitlines() if line.count(":") > 1
    }
    found = []
    for line in groups.splitlines():
        *hierarchy, path = line.split(":", 2)
        top = tops.get(tuple(hierarchy), "/")
        top = top[: -len(INIT)] if top.endswith(INIT) else top.rstrip("/")
        found.append(path[len(top) :] if f"{path}/".startswith(f"{top}/") else path)
    return "\n".join(found)


def _groups(root: str, pid: int | str) -> str:
    try:
        with open(f"{root.rstrip('/')}/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _run(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str | None:
    """Run a command and return None, or the first line of why it failed."""
    if _programs.find(words[0]) is None:
        return f"{words[0]} not found"
    done = _child.command(words, time.monotonic() + PATIENCE, environment)
    if done.status == "timeout":
        return f"{words[0]}: gives no answer within {PATIENCE:.0f} s"
    lines = [line for line in done.errors.splitlines() if line.strip()]
    return None if done.code == 0 else f"{words[0]}: {lines[0].strip() if lines else f'exit status {done.code}'}"


def _wait(name: str, root: str) -> bool:
    """Wait for systemd, which moves processes after it has answered."""
    until = time.monotonic() + PATIENCE
    while not inside(name, root):
        if time.monotonic() > until:
            return False
        time.sleep(TICK)
    return True

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Enter a systemd slice: this very process becomes a scope in it, so nothing stands between it and the command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._options import RefusalError

NAME = re.compile(r"[A-Za-z0-9:_.][A-Za-z0-9:_.-]*\.slice")
PATIENCE = 30.0
MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")


def enter(name: str, program: str) -> str | None:
    """Enter the slice and return None, or return why that was not possible."""
    if not NAME.fullmatch(name) or "--" in name:
        raise RefusalError(f"--slice {name}: is not the name of a slice", 2)
    if inside(name):
        return None
    if os.geteuid() == 0:
        reason = adopt(name, os.getpid())
    else:
        reason = _run(["pkexec", "--disable-internal-agent", program, f"--enter={name}", f"--pid={os.getpid()}"])
    return reason or (None if _wait(name) else "systemd has not moved this process")


def adopt(name: str, pid: int) -> str | None:
    """Make a scope of one process in a slice; return why that failed."""
    call = [
        "busctl",
        "--system",
        "call",
        *MANAGER,
        "StartTransientUnit",
        "ssa(sv)a(sa(sv))",
        f"gpu-run-{pid}.scope",
        "fail",
    ]
    words = ["3", "PIDs", "au", "1", str(pid), "Slice", "s", name, "CollectMode", "s", "inactive-or-failed", "0"]
    return _run([*call, *words])


def enter_for_user(name: str, pid: int, allowed: str) -> str | None:
    """Do it for the user who asked through polkit: the administrator's slice, and a process of that user, only."""
    uid = os.environ.get("PKEXEC_UID", "")
    if os.geteuid() != 0 or not uid.isdigit():
        raise RefusalError("--enter: is for pkexec, which gpu-run calls itself", 2)
    if name != allowed:
        raise RefusalError(f"--enter={name}: is not the slice of this host's jobs ({allowed or 'none is set'})", 2)
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        owner = -1
    if owner != int(uid):
        raise RefusalError(f"--pid={pid}: is not a process of the user who asks", 2)
    return adopt(name, pid)


def _run(words: Sequence[str]) -> str | None:
    if shutil.which(words[0]) is None:
        return f"{words[0]} not found"
    try:
        done = subprocess.run(list(words), capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{words[0]}: {error}"
    lines = done.stderr.strip().splitlines() or ["no message"]
    return None if done.returncode == 0 else lines[-1]


def inside(name: str) -> bool:
    """Tell whether this process is in the slice already."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as stream:
            return f"/{name}/" in stream.read()
    except OSError:
        return False


def _wait(name: str) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not inside(name):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True

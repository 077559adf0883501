# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run something in a process group with a time limit, and see to it that nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

TOKEN = "GPU_FLEET_SMOKE"  # in the environment of everything that the probe starts, wherever it hides
GRACE = 3.0  # a process that waits inside the kernel may take for ever; it is not waited for


def ask(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> str | None:
    """Return what a command prints, both streams in one; None where it is missing, fails to start or is late."""
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(environment) if environment is not None else None,
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    try:
        out, _nothing = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end_group(child.pid)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
        if child.stdout is not None:
            child.stdout.close()
        return None
    return out.decode(errors="replace")


def end_group(leader: int) -> None:
    """Kill a whole process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def marked(token: str) -> list[int]:
    """Return the processes whose environment carries the token."""
    wanted, found = f"{TOKEN}={token}".encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError), open(f"/proc/{name}/environ", "rb") as stream:
                if wanted in stream.read().split(b"\0"):
                    found.append(int(name))
    return found


def sweep(token: str) -> list[int]:
    """Kill all that carries the token and return what cannot be ended.

    A process that is just starting a program has no environment for a moment: only the second look in a row that
    finds nothing counts.
    """
    deadline, clean = time.monotonic() + GRACE, 0
    while clean < 2:
        left = marked(token)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if left and time.monotonic() > deadline:
            return left
        clean = 0 if left else clean + 1
        time.sleep(0.05)
    return []

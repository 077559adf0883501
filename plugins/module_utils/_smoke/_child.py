# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the probe once: start it, read what it says, end it when it is late, and tell how it ended."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import _processes
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._command import Command

IMPORT_SECONDS = 120.0  # torch from a cold network file system
Event = Mapping[str, Any]
Hear = Callable[[Event], None]


@dataclass
class Run:
    """How one run of the probe went."""

    events: list[dict[str, Any]] = field(default_factory=list)
    running: str = ""  # the check at work when it ended; "import" before the first, empty when all were done
    since: float = 0.0
    late: str = ""  # which limit it was over: "check" or "total"
    code: int | None = None  # negative for a signal; None where it could not be ended
    pid: int = 0
    errors: str = ""
    left: tuple[int, ...] = ()


def run(command: Command, folder: str, limits: Mapping[str, float], deadline: float, hear: Hear) -> Run:
    """Start the command and follow it until it ends, or a check is late, or the deadline is reached."""
    state = Run(running="import", since=time.monotonic())
    path = os.path.join(folder, "errors")
    with open(path, "w+b") as errors:
        child = subprocess.Popen(
            command.words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            start_new_session=True,
            env=command.environment,
        )
        state.pid = child.pid
        try:
            _follow(child, state, limits, deadline, hear)
        finally:
            _end(child, state, command.environment[_processes.TOKEN])
        errors.seek(max(0, os.fstat(errors.fileno()).st_size - 4000))
        state.errors = errors.read().decode(errors="replace").strip()
    os.unlink(path)
    return state


def _follow(
    child: subprocess.Popen[bytes], state: Run, limits: Mapping[str, float], deadline: float, hear: Hear
) -> None:
    """Read lines until the pipe closes or a limit is passed."""
    if child.stdout is None:
        return
    descriptor, rest = child.stdout.fileno(), b""
    os.set_blocking(descriptor, False)
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            check_ends = state.since + limits.get(state.running, IMPORT_SECONDS)
            now = time.monotonic()
            if now >= min(check_ends, deadline):
                state.late = "total" if deadline < check_ends else "check"
                return
            if selector.select(min(check_ends, deadline, now + 1.0) - now):
                data = os.read(descriptor, 65536)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    _take(line, state, hear)
            elif child.poll() is not None:  # somebody else holds the pipe
                return


def _take(line: bytes, state: Run, hear: Hear) -> None:
    """Take one line in; what is none of ours (a launcher's greeting) is passed over."""
    try:
        event = json.loads(line)
    except ValueError:
        return
    if not isinstance(event, dict) or "event" not in event:
        return
    state.events.append(event)
    if event["event"] in ("start", "end", "done", "import"):
        state.running = {"start": event.get("check", ""), "end": "between", "done": "", "import": "import"}[
            event["event"]
        ]
        state.since = time.monotonic()
    hear(event)


def _end(child: subprocess.Popen[bytes], state: Run, token: str) -> None:
    """See that nothing stays."""
    if not state.late:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_processes.GRACE)
    _processes.end_group(child.pid)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_processes.GRACE)
    state.code = child.returncode
    state.left = tuple(_processes.sweep(token))
    if child.stdout is not None:
        child.stdout.close()

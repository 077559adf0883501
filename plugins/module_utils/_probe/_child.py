# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run something that may hang in a child process that is always ended, or left behind knowingly, by a deadline."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _process

GRACE = 0.5  # how long a killed child may take to go; one that waits inside the kernel takes for ever
TICK = 0.005
NOT_STARTED = 127
RAISED = 70
PIECE = 65536
PIECES = 32  # taken at once, more than a pipe holds: who writes without end does not hold us beyond the deadline
MOST = 16 * 1024 * 1024  # what is kept of it
# A preload that is missing makes the loader print a line into everything; a driver's tool needs none of them.
NOT_FOR_TOOLS = ("LD_PRELOAD", "GLIBC_TUNABLES")


@dataclass(frozen=True)
class Result:
    """How a child ended, what it said, and which processes could not be ended."""

    status: Literal["ended", "timeout"]
    code: int | None  # the exit status, negative for a signal; None where it did not end
    output: str
    errors: str
    seconds: float
    left: tuple[_process.Process, ...] = ()


def call(function: Callable[[], Any], until: float) -> Result:
    """Run a function in a child until a moment of the monotonic clock; `output` is its answer as JSON."""

    return _run(lambda output: _write(output, json.dumps(function())), until)


def stream(function: Callable[[], Iterable[Any]], until: float) -> Result:
    """Run a function in a child; `output` has each of its answers as JSON on a line, also of a child that was ended."""

    def action(output: int) -> None:
        for answer in function():
            _write(output, json.dumps(answer) + "\n")

    return _run(action, until)


def _write(output: int, text: str) -> None:
    rest = text.encode()
    while rest:
        rest = rest[os.write(output, rest) :]


def command(words: Sequence[str], until: float, environment: Mapping[str, str] | None = None) -> Result:
    """Run a command in a child until a moment of the monotonic clock; exit status 127 where it cannot be started."""
    clean = {name: value for name, value in os.environ.items() if name not in NOT_FOR_TOOLS}
    given = clean if environment is None else environment

    def action(output: int) -> None:
        os.dup2(output, 1)
        try:
            os.execvpe(words[0], list(words), dict(given))
        except OSError as error:
            os.write(2, f"{words[0]}: {error.strerror}".encode())
            os._exit(NOT_STARTED)

    return _run(action, until)


def _run(action: Callable[[int], None], until: float) -> Result:
    began = time.monotonic()
    output_read, output_write = os.pipe()
    errors_read, errors_write = os.pipe()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # as inherited; nobody could be waited for
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _become(action, output_write, errors_write)
    os.close(output_write)
    os.close(errors_write)
    heard: dict[int, bytearray] = {output_read: bytearray(), errors_read: bytearray()}
    code = _listen(pid, heard, until)
    left = _end(pid, code)
    texts = [bytes(heard[stream]).decode("utf-8", "replace") for stream in (output_read, errors_read)]
    for stream in heard:
        os.close(stream)
    status: Literal["ended", "timeout"] = "timeout" if code is None else "ended"
    return Result(status, code, texts[0], texts[1], time.monotonic() - began, left)


def _become(action: Callable[[int], None], output: int, errors: int) -> None:
    """Turn the fork into the child: its own session, and none of the pipes whose other end somebody waits on."""
    status = RAISED
    try:
        try:
            _detach(output, errors)
            action(output)
            status = 0
        finally:
            kind, problem = sys.exc_info()[:2]
            if kind is not None:
                os.write(2, f"{kind.__name__}: {problem}".encode())
    finally:
        os._exit(status)  # whatever happened: the fork must never go on with its parent's work


def _detach(output: int, errors: int) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(errors, 2)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, output):
            _close(int(name))


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return  # the one that listed the folder is gone already


def _listen(pid: int, heard: dict[int, bytearray], until: float) -> int | None:
    """Gather what the child says until it ends: a pipe that a grandchild keeps open is not waited for."""
    with selectors.DefaultSelector() as selector:
        for stream in heard:
            os.set_blocking(stream, False)
            selector.register(stream, selectors.EVENT_READ)
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            remaining = until - time.monotonic()
            wait = 0.0 if ended else min(TICK, max(remaining, 0.0))
            if not selector.get_map():
                time.sleep(wait)
            for key, _events in selector.select(wait) if selector.get_map() else ():
                if not _drain(key.fd, heard[key.fd]):
                    selector.unregister(key.fd)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if remaining <= 0:
                return None


def _drain(stream: int, into: bytearray) -> bool:
    """Take what is there now; False at the end of the stream."""
    for _count in range(PIECES):
        try:
            piece = os.read(stream, PIECE)
        except BlockingIOError:
            return True
        if not piece:
            return False
        into += piece[: MOST - len(into)]
    return True


def _end(pid: int, code: int | None) -> tuple[_process.Process, ...]:
    """Kill what is left of the child's family and return the members that do not go."""
    if code is not None and not _has_group(pid):
        return ()
    members = _process.family(pid)
    _kill_group(pid)
    for member in members:
        _kill(member.pid)
    until = time.monotonic() + GRACE
    while time.monotonic() < until:
        if code is None:
            ended, _status = os.waitpid(pid, os.WNOHANG)
            code = 0 if ended else None
        members = [member for member in members if _process.lives(member.pid, member.start)]
        if not members and code is not None:
            break
        time.sleep(TICK)
    return tuple(members)


def _has_group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return

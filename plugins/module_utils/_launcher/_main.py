# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start a command near its GPUs: enter the slice, look, plan, bind, and become the command."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import (
    _defaults,
    _options,
    _plan,
    _programs,
    _scene,
    _slice,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._defaults import Defaults
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Plan, RefusalError
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._options import Options

MODES = {"preferred": "--preferred", "strict": "--membind"}
NOT_EXECUTABLE, NOT_FOUND = 126, 127


def main(words: Sequence[str], root: str = "/") -> int:
    """Return only where the command was not started."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt ends us as it would end the command
    try:
        defaults = _read_defaults(f"{root.rstrip('/')}{_defaults.PATH}")
        if words and words[0].startswith(_slice.ENTER):
            _slice.enter_for_user(words, defaults.slice, root)
            return 0
        return _start(_options.parse(words), defaults, root)
    except RefusalError as refusal:
        _say(str(refusal))
        return refusal.status


def _read_defaults(path: str) -> Defaults:
    """Read the defaults file; no file means no defaults."""
    try:
        with open(path, encoding="utf-8") as stream:
            return _defaults.parse(stream.read())
    except FileNotFoundError:
        return Defaults()
    except (OSError, ValueError) as error:
        raise RefusalError(f"{path}: {error}") from error


def _start(options: Options, defaults: Defaults, root: str) -> int:
    program = _program(options.command[0])
    slice_name = defaults.slice if options.slice is None else options.slice
    late = () if options.dry_run or not slice_name else _enter(options, slice_name, root)
    scene = _scene.look(_environment(), options.gpus, root)
    gone = _scene.gone(_defaults.preloads(defaults), root)
    made = _plan.plan(options, defaults, replace(scene, gone=gone, obstacles=(*late, *scene.obstacles)))
    if options.dry_run:
        answer = {**made.show(), "slice": slice_name or None, "strict": options.strict}
        sys.stdout.write(json.dumps({**answer, "command": list(options.command)}, indent=1) + "\n")
        return 0
    for line in (*made.obstacles, *made.remarks):
        _say(line)
    if options.strict and made.obstacles:
        raise RefusalError("not started, since --strict is set")
    _become(options, made, {**scene.environment, **made.environment}, program)
    return NOT_EXECUTABLE


def _say(line: str) -> None:
    sys.stderr.write(f"gpu-run: {line}\n")


def _environment() -> dict[str, str]:
    """Return the environment as it was given: Python itself adds LC_CTYPE where the locale is C."""
    environment = dict(os.environ)
    try:
        with open("/proc/self/environ", "rb") as stream:
            given = stream.read().split(b"\0")
    except OSError:
        return environment
    if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
        environment.pop("LC_CTYPE", None)
    return environment


def _enter(options: Options, name: str, root: str) -> tuple[str, ...]:
    reason = _slice.enter(name, os.path.abspath(sys.argv[0]), root)
    if reason is None:
        return ()
    if options.strict:
        raise RefusalError(f"slice {name}: cannot be entered ({reason}); not started, since --strict is set")
    return (f"slice {name}: cannot be entered ({reason}), so the command runs outside of it",)


def _program(word: str) -> str:
    """Return where the command lies, or refuse with the status that a shell has for it."""
    found = _programs.find(word)
    if found is not None:
        return found
    if _programs.exists(word):
        raise RefusalError(f"{word}: cannot be executed", NOT_EXECUTABLE)
    raise RefusalError(f"{word}: command not found", NOT_FOUND)


def _become(options: Options, made: Plan, environment: dict[str, str], program: str) -> None:
    """Bind, and give this process to the command."""
    words = list(options.command)
    if made.cpus:
        os.sched_setaffinity(0, made.cpus)
    if made.memory in MODES:
        bind = f"{MODES[made.memory]}={_topology.format_cpus(made.nodes)}"
        program, words = str(_programs.find("numactl")), ["numactl", bind, "--", *words]
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execve(program, words, environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise RefusalError(f"{program}: {os.strerror(error.errno or 0).lower()}", NOT_EXECUTABLE) from error
    os.execve("/bin/sh", ["sh", program, *words[1:]], environment)  # a script without its first line, as shells do

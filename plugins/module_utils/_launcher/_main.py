# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start a command near its GPUs: plan, enter the slice, bind, and become the command."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _options, _plan, _scene, _slice
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Plan
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._options import Options, RefusalError

MODES = {"preferred": "--preferred", "strict": "--membind"}


def main() -> int:
    """Run, and return only where the command was not started."""
    try:
        words = sys.argv[1:]
        if words[:1] and words[0].startswith("--enter="):
            return _enter_for_user(words)
        return start(_options.parse(words))
    except RefusalError as refusal:
        sys.stderr.write(f"gpu-run: {refusal}\n")
        return refusal.status


def _enter_for_user(words: Sequence[str]) -> int:
    if len(words) != 2 or not words[1].startswith("--pid=") or not words[1][6:].isdigit():
        raise RefusalError("--enter: wants --pid", 2)
    reason = _slice.enter_for_user(words[0][8:], int(words[1][6:]), _options.defaults().slice)
    if reason is not None:
        raise RefusalError(reason)
    return 0


def start(options: Options) -> int:
    """Become the command."""
    defaults = _options.defaults()
    program = _program(options.command[0])
    name = defaults.slice if options.slice is None else options.slice
    late = () if options.dry_run or not name else _enter(options, name)
    environment = {**os.environ, "GPU_RUN_NAMES": ",".join(options.gpus)}
    scene = _scene.look(environment)
    made = _plan.plan(options, defaults, replace(scene, notes=(*late, *scene.notes)))
    if options.dry_run:
        answer = {**made.show(), "slice": name or None, "strict": options.strict, "command": list(options.command)}
        sys.stdout.write(json.dumps(answer, indent=1) + "\n")
        return 0
    for note in made.notes:
        sys.stderr.write(f"gpu-run: {note}\n")
    if options.strict and made.notes:
        raise RefusalError("not started, since --strict is set")
    _become(options, made, program)
    return 1


def _enter(options: Options, name: str) -> tuple[str, ...]:
    reason = _slice.enter(name, os.path.abspath(sys.argv[0]))
    if reason is None:
        return ()
    if options.strict:
        raise RefusalError(f"slice {name}: cannot be entered ({reason}); not started, since --strict is set")
    return (f"slice {name}: cannot be entered ({reason}), so the command runs outside of it",)


def _program(word: str) -> str:
    """Return where the command lies, or refuse with the status that a shell has for it."""
    found = shutil.which(word)
    if found is not None:
        return found
    if os.path.exists(word):
        raise RefusalError(f"{word}: cannot be executed", 126)
    raise RefusalError(f"{word}: not found", 127)


def _become(options: Options, made: Plan, program: str) -> None:
    words = [program, *options.command[1:]]
    if made.cpus:
        os.sched_setaffinity(0, made.cpus)
    if made.memory in MODES:
        nodes = _topology.format_cpus(made.nodes)
        words = [str(shutil.which("numactl")), f"{MODES[made.memory]}={nodes}", "--", *words]
    sys.stderr.flush()
    sys.stdout.flush()
    try:
        os.execve(words[0], words, {**os.environ, **made.environment})
    except OSError as error:
        raise RefusalError(f"{program}: {error.strerror}", 126) from error

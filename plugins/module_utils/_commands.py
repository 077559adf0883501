# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the commands of a host: each question once, each settling command once after the last change of a file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

PATIENCE = 90  # seconds; a manager that reloads under load takes many
Runner = Callable[[Sequence[str]], "tuple[int, str]"]


def start(words: Sequence[str]) -> tuple[int, str]:
    """Run a command and return its exit status and what it says; 127 where it is missing, 124 where it hangs."""
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {PATIENCE} s"
    except OSError as error:
        return 127, error.strerror or "cannot be started"
    return done.returncode, done.stdout.decode("utf-8", "replace")


class Commands:
    """The commands of one host; an image has none."""

    def __init__(self, runner: Runner | None) -> None:
        """Run commands by `runner`, or none at all."""
        self._runner = runner
        self._answers: dict[tuple[str, ...], str | None] = {}
        self._settled: set[tuple[str, ...]] = set()

    def ask(self, words: Sequence[str]) -> str | None:
        """Return what a command that changes nothing prints, None where it fails; asked once until something runs."""
        key = tuple(words)
        if key not in self._answers:
            status, text = self._runner(words) if self._runner else (127, "")
            self._answers[key] = text if status == 0 else None
        return self._answers[key]

    def run(self, words: Sequence[str]) -> None:
        """Run a command that changes the host."""
        self._answers.clear()
        status, text = self._runner(words) if self._runner else (127, "an image runs nothing")
        if status != 0:
            lines = text.strip().splitlines() or ["no message"]
            raise TuningError(f"{' '.join(words)}: exit status {status} ({lines[-1]})")

    def once(self, words: Sequence[str]) -> None:
        """Run a command unless it has run since the last change of a file."""
        if tuple(words) not in self._settled:
            self.run(words)
            self._settled.add(tuple(words))

    def refresh(self) -> None:
        """Forget all answers: a new call begins, and another may have changed the host since."""
        self._answers.clear()
        self._settled.clear()

    def unsettle(self) -> None:
        """Note that a file has changed, and with it what a manager may answer."""
        self._answers.clear()
        self._settled.clear()

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes and services that the caller named, found on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Scene, failure
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

MOST = 8  # processes of one name
SUFFIXES = (".service", ".scope", ".slice", ".socket")


@dataclass(frozen=True)
class Found:
    """A process, or the reason why there is none for what was asked."""

    asked: str
    pid: int | None
    command: str | None = None
    reason: str | None = None


def find(host: Host, wanted: Sequence[str]) -> list[Found]:
    """Return the processes with these numbers or names (as in /proc/PID/comm)."""
    return [found for word in wanted for found in _find(host, word)]


def _find(host: Host, word: str) -> list[Found]:
    if word.isdigit():
        name = _read.text(host, f"/proc/{word}/comm")
        if name is None:
            return [Found(word, None, None, f"{word}: there is no such process")]
        return [Found(word, int(word), name)]
    pids = sorted(int(name) for name in _read.names(host, "/proc") if name.isdigit())
    found = [Found(word, pid, word) for pid in pids if _read.text(host, f"/proc/{pid}/comm") == word[:15]]
    return found[:MOST] or [Found(word, None, None, f"{word}: no process has this name")]


def units(scene: Scene, properties: Sequence[str]) -> tuple[list[dict[str, str]], str | None]:
    """Return the properties of each named service as systemd has them, or why nobody answers."""
    names = [unit(name) for name in scene.options.services]
    if not names:
        return [], None
    wanted = ("Id", "LoadState", "ActiveState", "MainPID", *properties)
    words = ["systemctl", "show", "--no-pager", f"--property={','.join(wanted)}", "--", *names]
    result = scene.ask(words)
    problem = failure(words, result)
    blocks = [block for block in result.output.split("\n\n") if block.strip()]
    if problem is None and len(blocks) != len(names):
        problem = f"systemctl: told about {len(blocks)} units, and {len(names)} were asked for"
    if problem is not None:
        return [], problem
    rows = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]
    return [{**row, "asked": name} for name, row in zip(names, rows)], None


def unit(name: str) -> str:
    """Return the full name of a unit."""
    return name if name.endswith(SUFFIXES) else f"{name}.service"


def main_pid(row: dict[str, str]) -> int | None:
    """Return the main process of a unit; None where it does not run."""
    word = row.get("MainPID", "")
    return int(word) if word.isdigit() and word != "0" else None

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every source of facts gets: the host, the options, and a way to run commands within its time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _child, _process

MARGIN = 0.3  # seconds that a source keeps for itself after a command that did not end
# A unit of work that speaks another language cannot be parsed.
PLAIN = {"LC_ALL": "C", "SYSTEMD_COLORS": "0"}


@dataclass(frozen=True)
class Options:
    """What the caller asked for, and the variables that its jobs have."""

    slices: Sequence[str] = ()
    services: Sequence[str] = ()
    processes: Sequence[str] = ()
    users: Sequence[str] = ()
    interpreters: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    import_torch: bool = False


@dataclass(frozen=True)
class Scene:
    """The host as one source sees it; it collects the processes that could not be ended."""

    host: Host
    options: Options
    until: float
    left: list[_process.Process] = field(default_factory=list)

    def ask(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> _child.Result:
        """Run a command that must end before the source itself has to."""
        clean = {name: value for name, value in os.environ.items() if name not in _child.NOT_FOR_TOOLS}
        given = {**clean, **PLAIN} if environment is None else environment
        result = _child.command(words, max(self.until - MARGIN, time.monotonic()), given)
        self.left.extend(result.left)
        return result


def failure(words: Sequence[str], result: _child.Result) -> str | None:
    """Return in one sentence why a command gave no answer, or None where it gave one."""
    if result.status == "timeout":
        return f"{words[0]}: gave no answer within the time"
    if result.code == 0:
        return None
    said = (result.errors or result.output).strip().splitlines()
    return f"{words[0]}: exit status {result.code} ({said[-1][:200] if said else 'no message'})"

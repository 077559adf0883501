# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuse a plan whose settings would break each other, whichever sets they belong to."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _atoms
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._plan import Plan
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Atom, TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers import _limits_files

OPEN_FILES = Atom("sysctl", "fs.nr_open")


def check(host: Host, plan: Plan) -> None:
    """Require every nofile limit to stay below fs.nr_open: above it, session set-up fails and nobody can log in."""
    most = _after(host, plan)
    if most is None:
        return
    for domain, value in (*_nofile(plan), *_of_others(host, plan)):
        if int(value) > most:
            raise TuningError(
                f"{domain} nofile: the limit {value} is above fs.nr_open, which is {most} after this call, so nobody "
                f"could log in; raise fs.nr_open in the same call or lower the limit"
            )


def _of_others(host: Host, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the hard limits of other people's lines that this call would lower fs.nr_open past."""
    before = [str(step.before) for step in plan.steps if step.atom == OPEN_FILES]
    allowed = max((int(text) for text in before if text.isdigit()), default=0)
    for line in _limits_files.read(host) if allowed else ():
        if (line.item, line.type) == ("nofile", "hard") and line.value.isdigit() and int(line.value) <= allowed:
            yield f"{line.source}: {line.domain}", line.value


def _after(host: Host, plan: Plan) -> int | None:
    """Return what fs.nr_open will be, live and at the next boot; None where that cannot be known."""
    known = [step.after for step in plan.steps if step.atom == OPEN_FILES] or [_atoms.read(host, OPEN_FILES)]
    stored = [one.stored for one in plan.decisions if one.held and one.view.atom == OPEN_FILES]
    numbers = [int(value) for value in (*known[-1:], *stored) if isinstance(value, str) and value.isdigit()]
    return min(numbers) if numbers else None


def _nofile(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the domain and value of each nofile limit that is ours after the call, of sets not in the call too."""
    declared = {one.view.atom: one.view.setting.value for one in plan.decisions if one.held}
    for atom, entry in plan.after.entries.items():
        words = atom.key.split()
        if words[-1] in ("nofile", "LimitNOFILE", "DefaultLimitNOFILE"):
            value = str(declared.get(atom, entry.applied)).rpartition(":")[2]
            if value.isdigit():
                yield words[0], value

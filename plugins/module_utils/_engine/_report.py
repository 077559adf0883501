# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what a plan does: the rows and the diff that the module `tuning` returns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _boot
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _atoms, _journal
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._decide import Decision
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._plan import Plan
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Boot, FileState, Outcome, State, Writer

Row = dict[str, Any]


def rows(plan: Plan) -> dict[str, Any]:
    """Return the result of a call, whether it was carried out or only previewed."""
    return {
        "changed": plan.changes,
        "changes": changes(plan),
        "settings": [_row(one, outcome=outcome(one, plan), reason=_reason(one, plan)) for one in plan.decisions],
        "not_applicable": not_applicable(plan.decisions)
        + [
            {
                "set": one.entry.set_name,
                "kind": one.atom.kind,
                "key": one.atom.key,
                "wanted": None,
                "reason": one.obstacle,
            }
            for one in plan.releases
            if one.obstacle is not None
        ],
        "conflicts": [row for one in plan.decisions for row in conflicts(one)],
        "pending": [
            {"set": one.entry.set_name, "kind": one.atom.kind, "key": one.atom.key, "reason": one.pending}
            for one in plan.releases
            if one.pending is not None
        ]
        + [
            {
                "set": one.view.setting.set_name,
                "kind": one.view.atom.kind,
                "key": one.view.atom.key,
                "reason": plan.waiting[one.view.atom],
            }
            for one in plan.decisions
            if one.view.atom in plan.waiting
        ],
        "diff": diff(plan),
    }


def _row(one: Decision, **more: Any) -> Row:
    setting = one.view.setting
    row = {"set": setting.set_name, "kind": setting.kind, "key": setting.key, "wanted": setting.value}
    return {**row, "rule": setting.rule, **more}


def changes(plan: Plan) -> list[Row]:
    """Return a row for each write, and one for a journal that changes without any."""
    found = [
        {
            "set": step.set_name,
            "kind": step.atom.kind,
            "key": step.atom.key,
            "before": brief(step.before),
            "after": brief(step.after),
        }
        for step in plan.steps
    ]
    found += [
        {"set": None, "kind": "service", "key": unit, "before": "running with other values", "after": "restarted"}
        for unit in plan.restarts
    ]
    if plan.changes and not found:
        before, after = (f"{len(journal.entries)} originals" for journal in (plan.before, plan.after))
        found.append({"set": None, "kind": "journal", "key": _journal.PATH, "before": before, "after": after})
    return found


def brief(state: State) -> str | None:
    """Return a state as a result row has it: null for nothing, and for a file what it is."""
    return _atoms.show(state) if isinstance(state, FileState) else state


def _reason(one: Decision, plan: Plan) -> str | None:
    return plan.waiting.get(one.view.atom, one.reason)


def outcome(one: Decision, plan: Plan) -> Outcome:
    """Return the outcome of one setting, once the plan is carried out."""
    if not one.applicable:
        return "not_applicable"
    if any(row["wins_at_boot"] != "ours" for row in conflicts(one)):
        return "conflict"
    if one.view.atom in plan.waiting:
        return "pending"
    return "changed" if one.held and moves(one) else "ok"


def moves(one: Decision) -> bool:
    """Tell whether the live or the stored value of a held setting is not yet as decided."""
    live = one.view.live is not None and not one.true_now
    return live or one.view.stored != one.stored


def not_applicable(decisions: Sequence[Decision]) -> list[Row]:
    """Return a row for each setting that cannot be had on this host."""
    return [_row(one, reason=one.reason) for one in decisions if not one.applicable]


def conflicts(one: Decision) -> list[Row]:
    """Return a row for each other owner that gives a held setting another value."""
    if not one.held or one.stored is None:
        return []
    setting, path, writers = one.view.setting, one.view.path, one.view.writers
    boot = one.view.boot(one.stored)
    return [
        _row(one, theirs=writer.value, source=writer.source, stage=writer.stage, wins_at_boot=_wins(boot, writer))
        for writer in _boot.conflicts(setting, one.stored, path, writers)
    ]


def _wins(boot: Boot, writer: Writer) -> str:
    if boot.value is None:
        return "unknown"
    if writer.stage == "specific":
        return "theirs"
    return "theirs" if boot.winner == writer.source else "ours" if boot.ours else "another"


def sentence(row: Row) -> str:
    """Return a conflict as a warning: what, whose, who wins, what to do."""
    theirs = "a value that is not understood" if row["theirs"] is None else row["theirs"]
    end = {
        "ours": "ours wins at boot, but theirs may come back in between",
        "theirs": "theirs wins at the next boot",
        "another": "neither wins at the next boot",
        "unknown": "who wins at the next boot is unknown",
    }[row["wins_at_boot"]]
    if row["stage"] == "specific":
        return (
            f"{row['key']}: is {row['wanted']} for the set {row['set']}, but {theirs} by {row['source']}, and the more "
            f"specific line wins; change that line or declare one for it"
        )
    return (
        f"{row['key']}: is {row['wanted']} for the set {row['set']} and {theirs} for {row['source']}; {end}; "
        f"take it out of one of them"
    )


def diff(plan: Plan) -> list[Row]:
    """Return the views of all that changes, and then each file."""
    moving = [one for one in plan.decisions if one.held and moves(one)]
    before = "".join(_line(one, _text(one.view.live), one.view.stored) for one in moving)
    after = "".join(_line(one, _live_after(one), one.stored) for one in moving)
    for step in plan.steps:
        if step.atom.kind != _atoms.FILE and not any(one.view.atom == step.atom for one in moving):
            before += f"{step.atom.kind} {step.atom.key}: live {_text(step.before)}\n"
            after += f"{step.atom.kind} {step.atom.key}: live {_text(step.after)}\n"
    views = [{"before_header": "views", "after_header": "views", "before": before, "after": after}] if before else []
    return views + list(_file_diffs(plan))


def _live_after(one: Decision) -> str | None:
    """Return the live value as it will be; what has none (a file, an image) does not get one."""
    return one.view.live if one.true_now or one.view.live is None else one.live


def _line(one: Decision, live: str | None, stored: str | None) -> str:
    setting, boot = one.view.setting, one.view.boot(stored)
    wanted = f"at least {setting.value}" if setting.rule == "at_least" else setting.value
    by = boot.reason or f"by {boot.winner or 'the kernel'}"
    return (
        f"{setting.kind} {setting.key}: wanted {wanted} | live {live or 'none'} | stored {stored or 'none'} | "
        f"boot {boot.value or 'unknown'} ({by})\n"
    )


def _text(state: State) -> str:
    return state if isinstance(state, str) else "none"


def _file_diffs(plan: Plan) -> Iterator[Row]:
    for step in plan.steps:
        if step.atom.kind == _atoms.FILE:
            yield {
                "before_header": step.atom.key,
                "after_header": step.atom.key,
                "before": _content(step.before),
                "after": _content(step.after),
            }


def _content(state: State) -> str:
    if not isinstance(state, FileState):
        return ""
    if state.link is not None:
        return f"-> {state.link}\n"
    if b"\0" in state.content:  # a program is named, not shown: its bytes are nothing to read
        return f"{len(state.content)} bytes, sha256 {hashlib.sha256(state.content).hexdigest()[:16]}\n"
    return state.content.decode("utf-8", "replace")

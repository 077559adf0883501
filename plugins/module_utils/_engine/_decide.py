# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide, for each setting, whether it is ours to hold on this host and with which values."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._views import View
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import KINDS, _values


@dataclass(frozen=True)
class Decision:
    """What is to become of one setting; one that is not held leaves no trace of ours on the host."""

    view: View
    held: bool
    applicable: bool
    reason: str | None = None
    live: str | None = None  # the state that its atom is to have
    stored: str | None = None  # the value that our file is to have

    @property
    def true_now(self) -> bool:
        """Tell whether the live value already is as declared."""
        return self.view.live is not None and satisfied(self.view, self.view.live)


def decide(view: View) -> Decision:
    """Decide from the view alone."""
    setting = view.setting
    if view.missing:
        if setting.when_missing == setting.value:
            return Decision(view, False, True, f"{view.live_reason}, which amounts to {setting.value}")
        return Decision(view, False, False, view.live_reason)
    if view.obstacle is not None:
        return Decision(view, False, view.live is not None and satisfied(view, view.live), view.obstacle)
    if setting.rule == "at_least":
        return _floor(view)
    return Decision(view, True, True, None, KINDS[setting.kind].wanted(setting), setting.value)


def _floor(view: View) -> Decision:
    """Hold a floor only where the host would be below it without us, now or after the next boot."""
    setting, entry = view.setting, view.entry
    base = view.live if entry is None else entry.original
    others = view.boot(None).value
    enough = isinstance(base, str) and _values.reaches(setting, base)
    if enough and (others is None or _values.reaches(setting, others)):
        return Decision(view, False, True, f"the host has {base} of its own")
    stored = setting.value if others is None else _values.raised(setting.key, others, setting.value)
    live = stored if view.live is None else _values.raised(setting.key, view.live, setting.value)
    return Decision(view, True, True, None, live, stored)


def satisfied(view: View, state: str) -> bool:
    """Tell whether a state of the atom makes the setting true."""
    if view.setting.rule == "at_least":
        return _values.reaches(view.setting, state)
    return state == KINDS[view.setting.kind].wanted(view.setting)

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at the host: each declared setting with what the kernel, our file, the journal and other owners say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ansible_collections.gpu_fleet.node.plugins.module_utils import _boot, _kinds, _writers
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _atoms
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._journal import Entry, Journal
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._request import Request
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import KINDS, _plain, _values
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Atom, Boot, FileState, Setting, Writer

OFFLINE = "the kernel of an image is not running"


@dataclass(frozen=True)
class View:
    """One declared setting as the host shows it."""

    setting: Setting
    atom: Atom
    live: str | None
    live_reason: str | None  # why there is no live value
    missing: bool  # it is one that this kernel does not have
    obstacle: str | None  # why it cannot be written
    stored: str | None
    path: str  # our file for it
    persistence: str | None  # why nothing applies our file at boot
    entry: Entry | None
    writers: tuple[Writer, ...]
    running: str | None = None  # what runs with another value until it is restarted

    def boot(self, stored: str | None) -> Boot:
        """Return what the next boot gives if our file holds `stored`."""
        if self.persistence is not None:
            return Boot(None, None, False, self.persistence)
        return _boot.boot(self.setting, stored, self.path, self.writers)


def observe(host: Host, wanted: Request, journal: Journal) -> tuple[View, ...]:
    """Return the view of each setting of the request; every file and folder is read once."""
    writers = _writers.search(host, wanted.settings) if wanted.settings else ()
    used = {setting.kind for setting in wanted.settings}
    persistence = {name: KINDS[name].persistence(host) for name in used}
    contents: dict[str, Mapping[str, str]] = {}
    views = []
    for setting in wanted.settings:
        atom = _kinds.atom(setting)
        path = next(iter(KINDS[setting.kind].files([setting])))
        if path not in contents:
            state = host.state(path)
            contents[path] = KINDS[setting.kind].parse(path, state) if isinstance(state, FileState) else {}
        live = _atoms.read(host, atom)
        text = live if isinstance(live, str) else None
        views.append(
            View(
                setting,
                atom,
                text,
                _no_live(host, setting) if text is None else None,
                text is None and host.live and KINDS[setting.kind].NO_LIVE is None,
                _obstacle(host, setting, text),
                contents[path].get(setting.key),
                path,
                persistence[setting.kind],
                journal.entries.get(atom),
                tuple(_readable(setting, one) for one in writers if (one.kind, one.key) == (setting.kind, setting.key)),
                KINDS[setting.kind].running(host, setting) if text is not None else None,
            )
        )
    return tuple(views)


def _readable(setting: Setting, one: Writer) -> Writer:
    """Return a writer whose value can be compared with a floor; one that cannot is not understood."""
    if setting.rule == "exact" or one.value is None or _values.comparable(setting, one.value):
        return one
    return replace(one, value=None)


def _no_live(host: Host, setting: Setting) -> str:
    reason = KINDS[setting.kind].NO_LIVE
    if reason is not None or not host.live:
        return reason or OFFLINE
    hint = _kinds.explain(host, setting)
    kind = KINDS[setting.kind]
    missing = kind.MISSING
    if missing == _plain.MISSING:  # it may be there and not for us, as in a container
        missing = kind.obstacle(host, kind.place(setting), kind.wanted(setting)) or "cannot be read here"
    return f"{missing}; {hint}" if hint else missing


def _obstacle(host: Host, setting: Setting, live: str | None) -> str | None:
    kind = KINDS[setting.kind]
    if not host.live or (live is None and kind.NO_LIVE is None):
        return None
    obstacle = kind.obstacle(host, kind.place(setting), kind.wanted(setting))
    if obstacle is None:
        _kinds.explain(host, setting)
    return obstacle

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kind `sysfs`: attributes below /sys, kept by one file of ours per set in tmpfiles.d."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _huge_pages, _plain, _start, _values
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import (
    Content,
    FileState,
    Rule,
    Setting,
    TuningError,
)

NAME = "sysfs"
NO_LIVE = None
RANK = 10  # before sysctl: a new THP mode makes the kernel compute vm.min_free_kbytes again
MISSING = _plain.MISSING
advice = _huge_pages.advice
follows = _plain.follows
made = _plain.made
passing = _plain.passing
resolve = _plain.resolve
running = _plain.running
place = _plain.place
wanted = _plain.wanted
check = _plain.check

HEADER = "# Written by gpu_fleet.node for the set {}; changes made here are undone by the next run.\n"
PATH = re.compile(r"/sys(/[A-Za-z0-9_.:@,+-]+)+")  # no blanks, globs or escapes: tmpfiles.d would read them
CHOSEN = re.compile(r"\[([^\]\s]+)\]")


def declare(set_name: str, options: Sequence[Mapping[str, Any]]) -> tuple[Setting, ...]:
    """Turn the declared options into settings in normal form, or refuse them."""
    return tuple(_declare(set_name, option) for option in options)


def _declare(set_name: str, option: Mapping[str, Any]) -> Setting:
    path = option["path"].rstrip("/")
    if not PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise TuningError(f"sysfs path {path!r}: is not a plain path below /sys")
    value = _values.clean(path, option)
    rule: Rule = option.get("rule") or "exact"
    if rule == "at_least":
        value = " ".join(
            map(str, _values.numbers(path, value))
        )  # the boot readers take no other spelling, and 010 as 8
    return Setting(set_name, NAME, path, value, rule, when_missing=option.get("when_missing"))


def live(host: Host, path: str) -> str | None:
    """Return the value in force: the word in brackets where the attribute lists its choices."""
    text = host.attribute(path)
    if text is None:
        return None
    chosen = CHOSEN.findall(text)
    return chosen[0] if len(chosen) == 1 else _values.one_line(text)


def obstacle(host: Host, path: str, _state: str) -> str | None:
    """Return why the attribute cannot be written on this host, or None."""
    return host.obstacle(path)


def explain(host: Host, setting: Setting) -> str | None:
    """Refuse a word that the attribute does not offer, and a number that this kernel would not take."""
    _huge_pages.refuse(host, setting)
    text = host.attribute(setting.key) or ""
    offered = CHOSEN.sub(r"\1", text).split()
    if len(CHOSEN.findall(text)) == 1 and setting.value not in offered:
        raise TuningError(f"{setting.key}: does not offer {setting.value!r}, expected one of {', '.join(offered)}")
    return None


def write(host: Host, path: str, state: str) -> None:
    """Give the attribute its value."""
    host.poke(path, state)


def files(settings: Sequence[Setting]) -> dict[str, Content]:
    """Return our file: its name sorts before those of all others, since the first base name wins."""
    if not settings:
        return {}
    name = settings[0].set_name
    lines = [HEADER.format(name), *sorted(f"w {one.key} - - - - {_escape(one.value)}\n" for one in settings)]
    return {f"/etc/tmpfiles.d/00-gpu-fleet-{name}.conf": Content("".join(lines).encode())}


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("%", "%%")


def parse(_path: str, state: FileState) -> dict[str, str]:
    """Return the values that a file of ours holds."""
    lines = state.content.decode("utf-8", "replace").splitlines()
    rows = (line.split(None, 6) for line in lines if line.startswith("w "))
    return {row[1]: _values.one_line(row[6].replace("%%", "%").replace("\\\\", "\\")) for row in rows if len(row) == 7}


def persistence(host: Host) -> str | None:
    """Return why nothing on this host applies our file at boot, or None."""
    return (
        None if _start.systemd(host) else "tmpfiles.d: is not applied at boot, since systemd does not start this host"
    )

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who sets a sysctl key in sysctl.d or /etc/sysctl.conf, as systemd-sysctl reads them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _start
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._sysctl import BYTES_OF, FACES
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._values import one_line
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, Writer
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers._layers import layered

HAND = "/etc/sysctl.conf"
OURS = re.compile(r"/etc/sysctl\.d/zz-gpu-fleet-[A-Za-z0-9_]+\.conf")


@dataclass(frozen=True)
class Line:
    """One assignment of a file; a value of None keeps the key out of all globs."""

    number: int
    key: str
    value: str | None


def parse(text: str) -> list[Line]:
    """Return the assignments of a file; what is no assignment is passed over, as systemd-sysctl does."""
    found = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        name, equals, value = line.partition("=")
        key = normal(name.strip().lstrip("-").strip())
        if equals:
            found.append(Line(number, key, one_line(value)))
        elif line.startswith("-"):
            found.append(Line(number, key, None))
    return found


def normal(key: str) -> str:
    """Return a key with dots between components, whichever of the two separators came first in it."""
    first = next((mark for mark in key if mark in "./"), ".")
    return key if first == "." else key.translate(str.maketrans("./", "/."))


@dataclass(frozen=True)
class Assignment:
    """A line with where it stands."""

    line: Line
    base: str
    path: str


def read(host: Host) -> list[Assignment]:
    """Return every assignment in force but ours, in the order of reading."""
    files = [row for row in layered(host, "sysctl.d") if not OURS.fullmatch(row[1])]
    return [Assignment(line, base, path) for base, path, text in files for line in parse(text)]


def writers(setting: Setting, lines: list[Assignment]) -> Iterator[Writer]:
    """Yield the one assignment that wins among the others, an explicit one before any glob."""
    explicit = [one for one in lines if value_for(setting, one.line) is not None]
    if explicit:
        yield _writer(setting, explicit[-1])
        return
    excluded = any(one.line.key == setting.key and one.line.value is None for one in lines)
    globs = [one for one in lines if one.line.value is not None and _matches(setting.key, one.line.key)]
    if globs and not excluded:
        yield _writer(setting, globs[-1], pattern=True)


def value_for(setting: Setting, line: Line) -> str | None:
    """Return what a line gives the setting; the other face of the setting counts, unless it only says 0."""
    if line.value is None:
        return None
    if line.key == setting.key:
        return line.value
    twin = FACES[setting.key][0] if setting.key in FACES else BYTES_OF.get(setting.key)
    return f"{line.key}={line.value}" if line.key == twin and line.value != "0" else None


def _matches(key: str, pattern: str) -> bool:
    parts, wanted = key.split("."), pattern.split(".")
    if not any(mark in pattern for mark in "*?[") or len(parts) != len(wanted):
        return False
    return all(fnmatch.fnmatchcase(part, one) for part, one in zip(parts, wanted))


def _writer(setting: Setting, one: Assignment, pattern: bool = False) -> Writer:
    value = one.line.value if pattern else value_for(setting, one.line)
    source = f"{one.path}:{one.line.number}"
    return Writer("sysctl", setting.key, value, source, "boot_file", order=one.base, pattern=pattern)


def by_hand(host: Host, setting: Setting, tuned: bool) -> Iterator[Writer]:
    """Yield what /etc/sysctl.conf says: `sysctl --system` and TuneD read it last, systemd-sysctl only by a link."""
    found = [line for line in parse(host.read(HAND) or "") if value_for(setting, line) is not None]
    if not found:
        return
    value, source = value_for(setting, found[-1]), f"{HAND}:{found[-1].number}"
    if tuned:
        yield Writer("sysctl", setting.key, value, f"{source} (which TuneD applies last)", "late")
    elif not _start.systemd(host):
        yield Writer("sysctl", setting.key, value, source, "boot_file", order="\uffff")
    else:
        yield Writer("sysctl", setting.key, value, f"{source} (which sysctl --system reads last)", "by_hand")

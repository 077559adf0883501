# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who writes a sysfs attribute through tmpfiles.d: the first base name wins, but a glob is an item of its own."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._values import one_line
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, Writer
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers._layers import layered

OURS = re.compile(r"/etc/tmpfiles\.d/00-gpu-fleet-[A-Za-z0-9_]+\.conf")
FIELD = re.compile(r'"(?:[^"\\]|\\.)*"|\S+')
WRITES = ("w", "F", "f+")  # f alone leaves a file that is there, and every attribute is


@dataclass(frozen=True)
class Item:
    """One line that writes."""

    base: str
    source: str
    path: str
    value: str | None


def parse(base: str, path: str, text: str) -> Iterator[Item]:
    """Yield the lines of a file that write below /sys."""
    for number, raw in enumerate(text.splitlines(), 1):
        fields = [field.strip('"') for field in FIELD.findall(raw)]
        if len(fields) < 7 or raw.lstrip().startswith("#") or not fields[1].startswith("/sys/"):
            continue
        kind = fields[0].rstrip("!-=~^$")
        if kind.rstrip("+") not in WRITES and kind not in WRITES:
            continue
        argument = raw.split(None, 6)[6].strip().strip('"')
        yield Item(base, f"{path}:{number}", fields[1].rstrip("/"), _unescape(argument))


def _unescape(argument: str) -> str | None:
    """Return the value, or None where it has a specifier whose meaning depends on the host."""
    if "%" in argument.replace("%%", ""):
        return None
    return one_line(argument.replace("%%", "%").replace("\\n", " ").replace("\\\\", "\\"))


def read(host: Host) -> list[Item]:
    """Return every item in force but ours, in the order of reading."""
    files = [row for row in layered(host, "tmpfiles.d") if "/sys/" in row[2] and not OURS.fullmatch(row[1])]
    return [item for base, path, text in files for item in parse(base, path, text)]


def writers(setting: Setting, items: list[Item]) -> Iterator[Writer]:
    """Yield the first line for the very path, and the last glob that matches it."""
    exact = [item for item in items if item.path == setting.key]
    globs = [item for item in items if any(mark in item.path for mark in "*?[") and _matches(setting.key, item.path)]
    for item, pattern in [*((one, False) for one in exact[:1]), *((one, True) for one in globs[-1:])]:
        yield Writer("sysfs", setting.key, item.value, item.source, "boot_file", order=item.base, pattern=pattern)


def _matches(path: str, pattern: str) -> bool:
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(fnmatch.fnmatchcase(part, one) for part, one in zip(parts, wanted))

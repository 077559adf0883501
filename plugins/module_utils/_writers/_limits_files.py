# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who sets a limit in limits.conf or limits.d: a later line of the same domain, or a more specific one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._limits import PRIORITIES, WITHOUT_LIMIT
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, Writer

MAIN = "/etc/security/limits.conf"
FOLDER = "/etc/security/limits.d"
OURS = re.compile(r"zz-gpu-fleet-[A-Za-z0-9_]+\.conf")


@dataclass(frozen=True)
class Line:
    """One limit of one domain."""

    base: str
    source: str
    domain: str
    type: str
    item: str
    value: str


def parse(base: str, path: str, text: str) -> Iterator[Line]:
    """Yield the limits of a file; a dash is both soft and hard."""
    for number, raw in enumerate(text.splitlines(), 1):
        words = raw.split("#")[0].split()
        if len(words) != 4 or words[1] not in ("soft", "hard", "-"):
            continue
        domain, kind, item, value = words
        value = "unlimited" if item not in PRIORITIES and value in WITHOUT_LIMIT else value
        for one in ("soft", "hard") if kind == "-" else (kind,):
            yield Line(base, f"{path}:{number}", domain, one, item, value)


def read(host: Host) -> list[Line]:
    """Return every limit but ours, in the order in which pam_limits reads them."""
    found = list(parse("", MAIN, host.read(MAIN) or ""))
    for base in host.names(FOLDER):
        if base.endswith(".conf") and not OURS.fullmatch(base):
            found += parse(base, f"{FOLDER}/{base}", host.read(f"{FOLDER}/{base}") or "")
    return found


def writers(host: Host, setting: Setting, lines: list[Line]) -> Iterator[Writer]:
    """Yield the last line of the same domain, and each domain that is more specific for some of its users."""
    domain, kind, item = setting.key.split()
    rows = [line for line in lines if (line.type, line.item) == (kind, item)]
    for line in [row for row in rows if row.domain == domain][-1:]:
        yield Writer("limits", setting.key, line.value, line.source, "boot_file", order=line.base)
    narrower = {row.domain: row for row in rows if _narrower(host, row.domain, domain)}
    for line in narrower.values():
        yield Writer("limits", setting.key, line.value, f"{line.source} (for {line.domain})", "specific")


def _narrower(host: Host, theirs: str, ours: str) -> bool:
    """Tell whether a domain is more specific than ours for users that ours reaches; root has lines of its own."""
    if theirs == ours or ours[0] not in "*@%":
        return False
    if ours == "*":
        return theirs not in ("root", "0:0", "0")
    return theirs[0] not in "*@%" and ours[0] == "@" and theirs in members(host, ours[1:])


def members(host: Host, group: str) -> set[str]:
    """Return the users of a local group, those with it as their first group included."""
    rows = [line.split(":") for line in (host.read("/etc/group") or "").splitlines()]
    ours = [row for row in rows if len(row) == 4 and row[0] == group]
    listed = {name for row in ours for name in row[3].split(",") if name}
    users = (line.split(":") for line in (host.read("/etc/passwd") or "").splitlines())
    return listed | {user[0] for user in users if len(user) > 3 and user[3] in {row[2] for row in ours}}

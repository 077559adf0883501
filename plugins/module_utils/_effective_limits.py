# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits that a login gets from limits.conf and limits.d, and the line that decides each of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers import _limits_files

# A more specific line wins over a later one: the ranks of pam_limits.
USER, GROUP, DEFAULT, NOBODY = 0, 1, 4, 6
RANGE = re.compile(r"(\d*):(\d*)")
File = tuple[str, str]  # path and text


@dataclass(frozen=True)
class User:
    """Who logs in; without `root_by_name`, wildcard and group lines reach root too, as they do in PAM itself."""

    name: str
    uid: int | None = None  # None: unknown, so lines for ranges of ids do not count
    gid: int | None = None
    root_by_name: bool = True  # as Debian's PAM has it


@dataclass(frozen=True)
class Limit:
    """The effective values of one item as the files spell them; None where no line sets one."""

    soft: str | None = None
    hard: str | None = None
    soft_source: str | None = None  # file:line
    hard_source: str | None = None
    soft_rank: int = NOBODY
    hard_rank: int = NOBODY


def files(host: Host) -> list[File]:
    """Return the files in the order in which pam_limits reads them: limits.conf, then limits.d by name."""
    folder = _limits_files.FOLDER
    paths = [_limits_files.MAIN, *(f"{folder}/{name}" for name in sorted(host.names(folder)) if name.endswith(".conf"))]
    return [(path, text) for path in paths if (text := host.read(path)) is not None]


def effective(host_files: Sequence[File], user: User, groups: Mapping[str, int]) -> dict[str, Limit]:
    """Return the limits of a login by item; `groups` are the user's groups with their ids.

    Nothing at all where a line exempts the user (`name -`): pam_limits then sets no limit.
    """
    found: dict[str, Limit] = {}
    for path, text in host_files:
        if exempted(text, user, groups) is not None:
            return {}
        for lines in _by_line(_limits_files.parse(path.rpartition("/")[2], path, text)):
            rank = _rank(lines[0].domain, user, groups)
            if rank is not None:
                found[lines[0].item] = _merge(found.get(lines[0].item, Limit()), lines, rank)
    return {item: _cut(limit) for item, limit in found.items()}


def exempted(text: str, user: User, groups: Mapping[str, int]) -> int | None:
    """Return the number of the line that takes a user out of all limits, or None."""
    for number, raw in enumerate(text.splitlines(), 1):
        words = raw.split("#")[0].split()
        alone = len(words) == 2 and words[1] == "-" and words[0][0] not in "*%"
        if alone and _rank(words[0], replace(user, root_by_name=False), groups) is not None:
            return number
    return None


def _by_line(lines: Iterable[_limits_files.Line]) -> Iterator[list[_limits_files.Line]]:
    """Put together what one line of a file says: a dash is soft and hard at once."""
    together: list[_limits_files.Line] = []
    for line in lines:
        if together and together[0].source != line.source:
            yield together
            together = []
        together.append(line)
    if together:
        yield together


def _rank(domain: str, user: User, groups: Mapping[str, int]) -> int | None:
    """Return how specific a domain is for a user, or None where it does not mean that user."""
    if domain == user.name:
        return USER
    span = RANGE.fullmatch(domain.lstrip("@%"))
    if domain[0] not in "*@%":
        return USER if span and _within(span, user.uid, ()) else None
    if domain[0] == "%" or (user.root_by_name and (user.name == "root" or user.uid == 0)):
        return None  # a per cent sign counts logins, and limits nothing else
    if domain == "*":
        return DEFAULT
    if span:
        return GROUP if _within(span, user.gid, groups.values()) else None
    return GROUP if domain[1:] in groups else None


def _within(span: re.Match[str], number: int | None, others: Iterable[int]) -> bool:
    """Tell whether a range of ids (`5:`, `5:9`, `:9` for 9 alone) has a number; `others` count for a single one."""
    low, high = span.groups()
    if not low:
        return bool(high) and int(high) in {number, *others}
    return number is not None and int(low) <= number and (not high or number <= int(high))


def _merge(limit: Limit, lines: Sequence[_limits_files.Line], rank: int) -> Limit:
    """Apply one line; where its soft half loses to a more specific line, pam_limits drops its hard half too."""
    for line in lines:
        if line.type == "soft":
            if limit.soft_rank < rank:
                return limit
            limit = replace(limit, soft=line.value, soft_source=line.source, soft_rank=rank)
        elif limit.hard_rank >= rank:
            limit = replace(limit, hard=line.value, hard_source=line.source, hard_rank=rank)
    return limit


def _cut(limit: Limit) -> Limit:
    """Lower a soft limit to the hard one, as pam_limits does before it sets both."""
    if limit.soft is None or limit.hard is None or not _above(limit.soft, limit.hard):
        return limit
    return replace(limit, soft=limit.hard, soft_source=limit.hard_source)


def _above(soft: str, hard: str) -> bool:
    if hard == "unlimited" or not hard.isdigit():
        return False
    return soft == "unlimited" or (soft.isdigit() and int(soft) > int(hard))

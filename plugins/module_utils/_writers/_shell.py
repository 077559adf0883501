# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a line of shell writes into a setting, as far as it is simple enough to be understood."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Optional

from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._sysctl import location
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._values import one_line
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers._sysctl_files import Line, parse, value_for

# What a file that a script names holds, or None.
Reader = Callable[[str], Optional[str]]
LOADS = re.compile(r"""\bsysctl\s+(?:-[eqN]+\s+)*(?:-[eqN]*[pf]|--load)[ =]?\s*(?P<files>[^;&|'"]*)""")
# What only looks at a file: a test, a program that prints, an input.
LOOKS = re.compile(r"""\[\[?\s[^\]]*\]|\btest\s[^;&|]*|\b(?:cat|grep|head|ls|stat)\s[^;&|>]*|<\s*[^\s;&|<]+""")
PAIR = re.compile(
    r"""(?<![\w./-])(?P<q>["']?)(?P<k>\w[\w./:@-]*)\s*=\s*(?P<r>["']?)(?P<v>.*?)(?P=r)(?P=q)(?=[\s;&|"']|$)"""
)
WORD = r"""(?:"(?P<d>[^"]*)"|'(?P<s>[^']*)'|(?P<w>[^\s"'>|;&]+))"""
SAYS = rf"\b(?:echo|printf)\s+(?:-\w+\s+)*(?:['\"]%s(?:\\+n)?['\"]\s+)?{WORD}\s*"


def commands(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers, continued ones joined and comments left out."""
    whole = ""
    for number, line in enumerate(text.splitlines(), 1):
        whole += re.sub(r"(^|\s)#.*$", "", line)
        if whole.endswith("\\"):
            whole = whole[:-1]
            continue
        if whole.strip():
            yield number, whole
        whole = ""


def value_of(setting: Setting, line: str, read: Reader) -> tuple[bool, str | None]:
    """Return whether a line writes the setting and what it writes: None where that is not understood."""
    path = location(setting.key) if setting.kind == "sysctl" else setting.key
    found = [_echoed(line, path)] + ([_sysctl(setting, line, read)] if setting.kind == "sysctl" else [])
    for writes, value in found:
        if writes:
            return True, value
    return _hidden(line, path), None


def _echoed(line: str, path: str) -> tuple[bool, str | None]:
    target = rf"""['"]?{re.escape(path)}['"]?(?=[\s;&|)'"]|$)"""
    into = rf"(?:>>?\s*|\|\s*(?:sudo\s+)?(?:\S*/)?tee\s+(?:-a\s+)?){target}"
    says = list(re.finditer(rf"{SAYS}{into}", line))
    if says:
        value = next(part for part in says[-1].group("d", "s", "w") if part is not None)
        value = re.sub(r"\\n$", "", value)
        return True, None if re.search(r"[$`]", value) else one_line(value)
    return re.search(into, line) is not None, None


def _sysctl(setting: Setting, line: str, read: Reader) -> tuple[bool, str | None]:
    if not re.search(r"\bsysctl\b", line):
        return False, None
    pairs = PAIR.finditer(line)
    found = [Line(0, pair["k"].replace("/", "."), one_line(pair["v"].strip("\"'"))) for pair in pairs]
    loaded = LOADS.search(line)
    if loaded:
        for file in loaded["files"].split() or ["/etc/sysctl.conf"]:
            found += parse(read(file) or "")
    values = [value for value in (value_for(setting, one) for one in found) if value is not None]
    if values:
        return True, None if re.search(r"[$`]", values[-1]) else values[-1]
    return re.search(rf"{re.escape(setting.key)}\s*=", line.replace("/", ".")) is not None, None


def _hidden(line: str, path: str) -> bool:
    """Tell whether a line writes to a path that only the shell can complete, such as .../transparent_hugepage/$f."""
    folder = re.escape(path.rsplit("/", 1)[0])
    return re.search(rf"(?:>|\btee\b)\s*(?:-a\s+)?['\"]?{folder}/[${{*]", line) is not None


def last(setting: Setting, text: str, read: Reader) -> tuple[int, str | None] | None:
    """Return the number and value of the last line that writes the setting, or None."""
    found = None
    for number, line in commands(text):
        writes, value = value_of(setting, line, read)
        if writes:
            found = (number, value)
    return found or _unread(setting, text)


def _unread(setting: Setting, text: str) -> tuple[int, None] | None:
    """Return a line that names the attribute in a way that is not understood, by a variable or the folder perhaps."""
    path = location(setting.key) if setting.kind == "sysctl" else setting.key
    parts = path.split("/")
    splits = [("/".join(parts[:at]), "/".join(parts[at:])) for at in range(4, len(parts))]
    for number, raw in commands(text):
        line = LOOKS.sub(" ", raw)
        if re.search(rf"(?<![\w/]){re.escape(path)}(?![\w/])", line):
            return number, None
        for folder, rest in splits:
            if folder not in line:
                continue
            held = re.search(rf"(?:\bcd\s+|\w=)['\"]?{re.escape(folder)}/?(?=['\"\s;&|]|$)", line)
            if held and re.search(rf"(?<![\w.]){re.escape(rest)}(?![\w/])", text):
                return number, None
            if rest == parts[-1] and re.search(rf"\bin\s[^;]*{re.escape(folder)}/[*?$\[]", line):
                return number, None
    return None

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who writes a setting from a udev rule."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._values import one_line
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, Writer
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers import _shell
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers._layers import layered
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers._sysctl_files import Line, normal, value_for

ASSIGNS = re.compile(r'\b(ATTR|SYSCTL)\{([^}]+)\}\s*:?=\s*"((?:[^"\\]|\\.)*)"')
RUNS = re.compile(r'\bRUN(?:\{program\})?\s*[:+]?=\s*"((?:[^"\\]|\\.)*)"')


def read(host: Host) -> list[tuple[str, str]]:
    """Return the rules that assign or run something, each with where it stands."""
    found = []
    for _base, path, text in layered(host, "udev/rules.d", ".rules"):
        if "ATTR{" in text or "SYSCTL{" in text or "/sys/" in text or "sysctl" in text:
            found += [(line, f"{path}:{number}") for number, line in _shell.commands(text)]
    return found


def writers(host: Host, setting: Setting, rules: list[tuple[str, str]]) -> Iterator[Writer]:
    """Yield each rule that writes the setting."""
    for rule, source in rules:
        for value in _values(host, setting, rule):
            yield Writer(setting.kind, setting.key, value, f"the udev rule {source}", "late")


def _values(host: Host, setting: Setting, rule: str) -> Iterator[str | None]:
    for word, name, value in ASSIGNS.findall(rule):
        if word == "SYSCTL" and setting.kind == "sysctl":
            found = value_for(setting, Line(0, normal(name), one_line(value)))
            if found is not None:
                yield None if "$" in found or "%" in found else found
        elif word == "ATTR" and setting.kind == "sysfs" and "/" in name and setting.key.endswith(f"/{name}"):
            yield None  # which devices the rule is for cannot be told from here
    for command in RUNS.findall(rule):
        writes, value = _shell.value_of(setting, _inner(command.replace('\\"', '"')), host.read)
        if writes:
            yield value


def _inner(command: str) -> str:
    """Return the script of `sh -c '...'`, or the command."""
    match = re.search(r"\bsh\s+-\w*c\s+(['\"])(.*)\1", command)
    return match[2] if match else command

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who sets a property of a unit: its file, and the drop-ins of the unit, its prefixes and its type."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpu_fleet.node.plugins.module_utils import _manager
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._properties import PROPERTIES
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, TuningError, Writer

# The first folder that has a name hides it in the others; what lies below /run is gone at the next boot.
FOLDERS = (
    "/etc/systemd/system.control",
    "/etc/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
MANAGER = ("/etc/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")
OURS = re.compile(r"zz-gpu-fleet-[A-Za-z0-9_]+(-\d\d)?\.conf")


def writers(host: Host, setting: Setting) -> Iterator[Writer]:
    """Yield the last of the others who set the property, and who would set it after ours."""
    unit, name = setting.key.split()
    for base, path in files(host, unit):
        value = None if OURS.fullmatch(base) else assigned(host.read(path) or "", name)
        if value is not None:
            yield Writer("units", setting.key, normal(setting.key, value), path, "boot_file", order=base)


def files(host: Host, unit: str) -> list[tuple[str, str]]:
    """Return base name and path of all that is read for a unit, in the order of reading."""
    if unit == _manager.MANAGER:
        return _sorted(host, [f"{folder}/system.conf.d" for folder in MANAGER], f"{MANAGER[0]}/system.conf")
    main = next((f"{folder}/{unit}" for folder in FOLDERS if host.read(f"{folder}/{unit}") is not None), "")
    return _sorted(host, [f"{folder}/{name}.d" for name in names(unit) for folder in FOLDERS], main)


def names(unit: str) -> list[str]:
    """Return the names whose drop-ins a unit reads, the most specific first."""
    stem, _dot, suffix = unit.rpartition(".")
    template = [f"{stem.partition('@')[0]}@.{suffix}"] if "@" in stem and not stem.endswith("@") else []
    words = stem.rstrip("-").split("-")
    prefixes = [f"{'-'.join(words[:level])}-.{suffix}" for level in range(len(words) - 1, 0, -1)]
    return [unit, *template, *(one for one in prefixes if one != unit), suffix]


def _sorted(host: Host, folders: list[str], main: str) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for folder in folders:
        for base in host.names(folder):
            if base.endswith(".conf"):
                found.setdefault(base, f"{folder}/{base}")
    return [*([("", main)] if main else []), *sorted(found.items())]


def assigned(text: str, name: str) -> str | None:
    """Return the last value that a file gives a property."""
    found = re.findall(rf"^[ \t]*{name}[ \t]*=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE)
    return found[-1] if found else None


def normal(key: str, value: str) -> str | None:
    """Return a value in the form of a declaration; None where it is not understood."""
    try:
        return PROPERTIES[key.split()[1]].form(key, value)
    except TuningError:
        return None

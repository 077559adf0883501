# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tuning gave this host, as far as a job can see it: taken from the journal that the tuning keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._engine._journal import Entry, load
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Atom, TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._model import Row, row

THP = Atom("sysfs", "/sys/kernel/mm/transparent_hugepage/enabled")
IN_KIB = ("memlock", "stack", "core", "as")


def expectations(host: Host, user: str) -> tuple[dict[str, Any], list[Row]]:
    """Return what the environment of a job must show, and a row where the journal cannot be understood."""
    try:
        return declared(load(host).entries, user), []
    except TuningError as error:
        action = "run the audit on this host"
        return {}, [row("environment", "environment.declared", "unknown", reason=str(error), action=action)]


def declared(entries: Mapping[Atom, Entry], user: str) -> dict[str, Any]:
    """Return mode and limits; limits of logins only where the probe has a session of its user."""
    found: dict[str, Any] = {}
    if THP in entries:
        found["thp"] = entries[THP].applied
    limits: dict[str, str] = {}
    for domain in ("root",) if user == "root" else ("*", user) if user else ():
        for atom, entry in entries.items():
            if atom.kind == "limits" and atom.key.startswith(f"{domain} soft "):
                item = atom.key.split()[-1]
                unit = "K" if item in IN_KIB and entry.applied != "unlimited" else ""
                limits[item] = f"{entry.applied}{unit}"
    return {**found, "limits": limits} if limits else found

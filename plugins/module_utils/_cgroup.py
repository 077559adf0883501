# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell cgroup v1, v2 and hybrid hosts apart by where a controller is, and read what the kernel keeps for a group."""

from __future__ import annotations

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host

ROOT = "/sys/fs/cgroup"
UNIFIED = (ROOT, f"{ROOT}/unified")  # the second is the v2 part of a hybrid host


def folder(host: Host, controller: str) -> tuple[int, str] | None:
    """Return the version of the hierarchy that has a controller, and its folder; None where no hierarchy has it."""
    for place in UNIFIED:
        if controller in (host.read(f"{place}/cgroup.controllers") or "").split():
            return 2, place
    place = f"{ROOT}/{controller}"
    return (1, place) if host.names(place) else None


def version(host: Host, controller: str = "memory") -> int | None:
    """Return the version by which a controller acts on this host; None where it does not act at all."""
    found = folder(host, controller)
    return found[0] if found else None


def path(slice_name: str) -> str:
    """Return where systemd puts a slice: each dash in its name is a level of the tree."""
    stem = slice_name[: -len(".slice")]
    if stem == "-":
        return "/"
    words = stem.split("-")
    return "".join(f"/{'-'.join(words[: level + 1])}.slice" for level in range(len(words)))

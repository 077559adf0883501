# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the folders that systemd layers: by base name, where a file in /etc masks its namesake in /usr/lib."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host

FOLDERS = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")


def layered(host: Host, name: str, ending: str = ".conf") -> Iterator[tuple[str, str, str]]:
    """Yield base name, path and text of each file in force, in the order of the base names."""
    chosen: dict[str, str] = {}
    for folder in FOLDERS:
        for base in host.names(f"{folder}/{name}"):
            if base.endswith(ending):
                chosen.setdefault(base, f"{folder}/{name}/{base}")
    for base in sorted(chosen):
        text = host.read(chosen[base])
        if text:
            yield base, chosen[base], text

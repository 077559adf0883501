# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the manager may read its files again: it can take the GPUs away from containers that run."""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.gpu_fleet.node.plugins.module_utils import _manager
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _atoms
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Atom

RISK = "a daemon-reload can take the GPUs away from it"


def obstacle(host: Host, mode: str, atoms: Iterable[Atom]) -> str | None:
    """Return why a reload has to wait, or None; looked into only where an atom could need one."""
    if not host.live or mode == "always" or not any(_atoms.follows(atom) for atom in atoms):
        return None
    if mode == "never":
        return "waits for a daemon-reload, and reload is never"
    found = _manager.gpu_container(host)
    return f"waits for a daemon-reload, since a container with GPUs runs ({found})" if found else None


def warning(host: Host, mode: str, atoms: Iterable[Atom]) -> list[str]:
    """Return a warning where a reload is allowed although a container could lose its GPUs."""
    found = _manager.gpu_container(host) if mode == "always" and any(_atoms.follows(atom) for atom in atoms) else None
    return [f"daemon-reload: a container with GPUs runs ({found}), and {RISK}; reload is always"] if found else []

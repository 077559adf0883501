# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give the text of our own modules, from the archive that Ansible sent or from a plain folder."""

from __future__ import annotations

from types import ModuleType

from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError


def text(part: ModuleType) -> str:
    """Return the source of a module."""
    loader = part.__spec__.loader if part.__spec__ else None
    source = loader.get_source(part.__name__) if loader is not None and hasattr(loader, "get_source") else None
    if source is None:
        raise TuningError(f"{part.__name__}: its source is not at hand, and a program is built from it")
    return str(source)

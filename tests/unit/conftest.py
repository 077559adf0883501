# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the checkout importable as ansible_collections.gpu_fleet.node, whatever its folder is called."""

from __future__ import annotations

import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLLECTIONS = ROOT / ".ansible" / "collections"


def _link_checkout() -> None:
    """Make the link that gpu-fleet makes, for a pytest that was started by hand."""
    link = COLLECTIONS / "ansible_collections" / "gpu_fleet" / "node"
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("../../../..")


def _name_package() -> None:
    """Point ansible_collections at the linked tree: an installed `ansible` brings a package of that name."""
    package = types.ModuleType("ansible_collections")
    package.__path__ = [str(COLLECTIONS / "ansible_collections")]
    sys.modules["ansible_collections"] = package


_link_checkout()
_name_package()

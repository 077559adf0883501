# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""XIDs, the NVIDIA driver's error numbers, in the kernel log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe._kernel_log import Record

XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")
MOST = 20  # for one GPU; a storm of one number says nothing new after that


def find(records: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    """Return the last XIDs of each GPU by its address."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        match = XID.search(record.message)
        address = _topology.bus_id(match[1]) if match else None
        if match and address:
            entry = {"code": int(match[2]), "when": record.when, "message": (match[3] or "").strip()}
            found.setdefault(address, []).append(entry)
    return {address: entries[-MOST:] for address, entries in found.items()}

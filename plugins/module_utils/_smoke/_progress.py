# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A line for each check that begins, for somebody who waits."""

from __future__ import annotations

import os
import time


def tell(path: str, check: str) -> None:
    """Add a line to the file; without a file nothing is told."""
    if not path:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as stream:
        stream.write(f"{time.strftime('%H:%M:%S')} {check}\n")

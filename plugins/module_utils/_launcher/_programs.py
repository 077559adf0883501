# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find a program the way the kernel's callers do, without shutil, whose imports take longer than the search."""

from __future__ import annotations

import os


def find(word: str) -> str | None:
    """Return the first executable file of this name in PATH; a word with a slash is looked for nowhere else."""
    return next((place for place in _places(word) if os.access(place, os.X_OK) and os.path.isfile(place)), None)


def exists(word: str) -> bool:
    """Tell whether there is something of this name, executable or not."""
    return any(map(os.path.exists, _places(word)))


def _places(word: str) -> list[str]:
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return [word] if "/" in word else [os.path.join(folder, word) for folder in folders]

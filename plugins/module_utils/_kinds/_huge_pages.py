# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a huge page switch means on a kernel, whose pages may be of 4, 16 or 64 KiB: refusals and warnings."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, TuningError

FOLDER = "/sys/kernel/mm/transparent_hugepage"
COUNTS = tuple(f"{FOLDER}/khugepaged/max_ptes_{name}" for name in ("none", "shared", "swap"))
USUAL = 2**25  # above it memory that has been used for a while has hardly a piece left, and most of one is wasted


def refuse(host: Host, setting: Setting) -> None:
    """Refuse to count more small pages in a huge one than it has."""
    huge = _size(host)
    if setting.key not in COUNTS or huge is None or not setting.value.isdigit():
        return
    pages = huge // host.page
    if int(setting.value) >= pages:
        raise TuningError(
            f"{setting.key}: {setting.value} is more than this kernel takes, expected 0 to {pages - 1}: its huge page "
            f"of {huge >> 20} MiB has {pages} pages of {host.page >> 10} KiB"
        )


def advice(host: Host, settings: Sequence[Setting]) -> list[str]:
    """Say where a huge page is so large that programs which did not ask for it would waste most of it."""
    huge = _size(host)
    if huge is None or huge <= USUAL:
        return []
    keys = [one.key for one in settings if one.key == f"{FOLDER}/enabled" and one.value == "always"]
    size = f"{huge >> 20} MiB on this kernel (pages of {host.page >> 10} KiB)"
    return [f"{key}: a huge page has {size}, so always is rarely wanted here; declare madvise" for key in keys]


def _size(host: Host) -> int | None:
    """Return the bytes of a huge page; None in an image, and where the kernel has none."""
    text = (host.glance(f"{FOLDER}/hpage_pmd_size") or "").strip()
    return int(text) if host.live and text.isdigit() else None

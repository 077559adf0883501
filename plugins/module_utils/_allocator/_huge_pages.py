# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Transparent huge pages in all their switches, and whether anybody can still get one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._figures import Missing, group, number, text
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

FOLDER = "/sys/kernel/mm/transparent_hugepage"
BOOT = (
    "transparent_hugepage=",
    "transparent_hugepage_shmem=",
    "transparent_hugepage_tmpfs=",
    "thp_anon=",
    "thp_shmem=",
)
CHOSEN = re.compile(r"\[([^\]\s]+)\]")
SIZE = re.compile(r"hugepages-(\d+)kB")
NONE = ("never", "deny")
KHUGEPAGED = ("defrag", "max_ptes_none", "max_ptes_swap", "max_ptes_shared", "pages_to_scan", "scan_sleep_millisecs")
ABSENT = Missing("this kernel has no transparent huge pages")


def gather(scene: Scene) -> dict[str, Any]:
    """Return every switch, the words of the boot line, and the verdict over all of them."""
    host = scene.host
    line = text(host, "/proc/cmdline")
    words = line if isinstance(line, Missing) else [word for word in line.split() if word.startswith(BOOT)]
    names = ("enabled", "defrag", "shmem_enabled", "use_zero_page", "huge_page", "shrink_underused", "khugepaged")
    if not host.names(FOLDER):
        missing = dict.fromkeys(names, ABSENT)
        return group(
            FOLDER, {"available": False, **missing, "sizes": [], "mounts": [], "fully_off": True, "boot": words}
        )
    found: dict[str, Any] = {name: chosen(host, f"{FOLDER}/{name}") for name in names[:3]}
    sizes = [_size(host, name) for name in host.names(FOLDER) if SIZE.fullmatch(name)]
    mounts = _mounts(_read.text(host, "/proc/mounts") or "")
    return group(
        FOLDER,
        {
            "available": True,
            **found,
            "use_zero_page": number(host, f"{FOLDER}/use_zero_page"),
            "huge_page": number(host, f"{FOLDER}/hpage_pmd_size"),
            "shrink_underused": number(host, f"{FOLDER}/shrink_underused"),
            "khugepaged": {name: _read.number(host, f"{FOLDER}/khugepaged/{name}") for name in KHUGEPAGED},
            "sizes": sorted(sizes, key=lambda size: size["bytes"]),
            "mounts": mounts,
            "fully_off": fully_off(found, sizes, mounts),
            "boot": words,
        },
    )


def chosen(host: Host, path: str) -> str | Missing:
    """Return the word in brackets, or why there is none."""
    content = text(host, path)
    if isinstance(content, Missing):
        return content
    found = CHOSEN.findall(content)
    return found[0] if len(found) == 1 else Missing(f"{path}: marks no single word in {content[:80]!r}")


def _size(host: Host, name: str) -> dict[str, Any]:
    found = SIZE.fullmatch(name)
    folder = f"{FOLDER}/{name}"
    size = int(found[1]) * 1024 if found else 0
    switches = {switch: chosen(host, f"{folder}/{switch}") for switch in ("enabled", "shmem_enabled")}
    return group(folder, {"bytes": size, **switches})


def _mounts(content: str) -> list[dict[str, str]]:
    """Return the tmpfs mounts that ask for huge pages by themselves."""
    rows = (line.split() for line in content.splitlines())
    found = ((row[1], re.search(r"(?:^|,)huge=([^,]+)", row[3])) for row in rows if len(row) > 3 and row[2] == "tmpfs")
    return [{"mount": mount, "huge": word[1]} for mount, word in found if word and word[1] != "never"]


def fully_off(
    switches: dict[str, Any], sizes: Sequence[dict[str, Any]], mounts: Sequence[dict[str, str]]
) -> bool | Missing:
    """Tell whether nobody gets a huge page any more: private, shared, of any size, on any mount.

    A size follows the switch above it only where it says `inherit`; `deny` and `force` outrank sizes and mounts.
    """
    answers = [_off(switches["enabled"], _of_sizes(sizes, "enabled"))]
    shared = switches["shmem_enabled"]
    if shared == "force":
        answers.append(False)
    elif shared != "deny":
        answers.append(_off(shared, _of_sizes(sizes, "shmem_enabled")))
        answers.append(not mounts)
    if False in answers:
        return False
    return Missing("not every switch could be read") if None in answers else True


def _lacking(missing: Missing) -> bool:
    return missing.reason.endswith("is missing")


def _of_sizes(sizes: Sequence[dict[str, Any]], switch: str) -> list[str | None]:
    """Return the words of one switch; not every size has both, and older kernels have none of the second."""
    return [size[switch] for size in sizes if not _lacking(Missing(size["reasons"].get(switch, "")))]


def _off(above: str | Missing, sizes: Sequence[str | None]) -> bool | None:
    """Judge one switch and those below it; None where one cannot be read. A switch the kernel lacks gives nothing."""
    head = _lacking(above) or None if isinstance(above, Missing) else above in NONE
    words = [head if word == "inherit" else None if word is None else word == "never" for word in sizes]
    answers = words or [head]
    if False in answers:
        return False
    return None if None in answers else True

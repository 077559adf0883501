# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel's command line says of a setting; it acts before every file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, Writer
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers._sysctl_files import normal

THP = "/sys/kernel/mm/transparent_hugepage"
WORDS = {f"{THP}/enabled": "transparent_hugepage", f"{THP}/shmem_enabled": "transparent_hugepage_shmem"}
GRUB = re.compile(r'^\s*GRUB_CMDLINE_LINUX(?:_DEFAULT)?=["\']?([^"\'\n]*)', re.MULTILINE)


def read(host: Host) -> list[tuple[str, str]]:
    """Return the words with where they stand; of an image, those that its boot loader will pass on."""
    if host.live:
        return [(word, "the boot line") for word in (host.read("/proc/cmdline") or "").split()]
    grub = " ".join(GRUB.findall(host.read("/etc/default/grub") or ""))
    words = [(word, "/etc/default/grub") for word in grub.split()]
    return words + [(word, "/etc/kernel/cmdline") for word in (host.read("/etc/kernel/cmdline") or "").split()]


def writers(setting: Setting, words: list[tuple[str, str]]) -> Iterator[Writer]:
    """Yield the last word that sets the setting."""
    found = []
    for word, place in words:
        name, equals, value = word.partition("=")
        sysctl = name.startswith("sysctl.") and normal(name[len("sysctl.") :])
        if equals and (name == WORDS.get(setting.key) or sysctl == setting.key):
            found.append(Writer(setting.kind, setting.key, value, f"{word} on {place}", "boot_line"))
    yield from found[-1:]

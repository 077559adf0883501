# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a malloc library lies on this distribution and processor, or which package brings it."""

from __future__ import annotations

import os
import re

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

# For each library the file names that do to preload it, best first.
FILES = {
    "jemalloc": re.compile(r"libjemalloc\.so\.\d+"),
    "tcmalloc": re.compile(r"libtcmalloc(?:_minimal)?\.so\.\d+"),
    "mimalloc": re.compile(r"libmimalloc\.so\.\d+(?:\.\d+)?"),
}
PACKAGES = {
    "debian": {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4", "mimalloc": "libmimalloc2.0"},
    "fedora": {
        "jemalloc": "jemalloc (from EPEL)",
        "tcmalloc": "gperftools-libs (from EPEL)",
        "mimalloc": "mimalloc (from EPEL)",
    },
    "suse": {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc4", "mimalloc": "libmimalloc2"},
}
FAMILIES = {"rhel": "fedora", "centos": "fedora", "ubuntu": "debian", "opensuse": "suse", "sles": "suse"}
# The number of a processor in the header of a library.
PROCESSORS = {"x86_64": 62, "aarch64": 183, "ppc64le": 21, "riscv64": 243, "s390x": 22}


def folders(machine: str) -> tuple[str, ...]:
    """Return where libraries of a processor lie: Debian's folder names the processor, the others have lib64 or lib."""
    local = (f"/usr/local/lib/{machine}-linux-gnu", "/usr/local/lib64", "/usr/local/lib")
    return (
        f"/usr/lib/{machine}-linux-gnu",
        "/usr/lib64",
        f"/lib/{machine}-linux-gnu",
        "/lib64",
        *local,
        "/usr/lib",
        "/lib",
    )


def find(host: Host, name: str, machine: str = "") -> str:
    """Return the path of a malloc library; refuse with the package that brings it where there is none."""
    machine = machine or os.uname().machine
    for folder in folders(machine):
        fits = [one for one in _read.names(host, folder) if FILES[name].fullmatch(one)]
        for base in sorted(fits, key=_newest):
            path = f"{folder}/{base}"
            if exists(host, path) and _is_for(host, path, machine):
                return path
    raise TuningError(f"{name}: no library of this name is installed for {machine}; install {package(host, name)}")


def _newest(base: str) -> tuple[bool, tuple[int, ...]]:
    """Sort the full library before the minimal one and the newest first."""
    return "_minimal" in base, tuple(-int(word) for word in re.findall(r"\d+", base.partition(".so.")[2]))


def package(host: Host, name: str) -> str:
    """Return the package of this distribution."""
    rows = dict(line.split("=", 1) for line in (_read.text(host, "/etc/os-release") or "").splitlines() if "=" in line)
    words = f"{rows.get('ID', '')} {rows.get('ID_LIKE', '')}".replace('"', "").split()
    for word in words:
        stem = word.partition("-")[0]
        family = FAMILIES.get(stem, stem)
        if family in PACKAGES:
            return f"the package {PACKAGES[family][name]}"
    return f"the package of {name} for this distribution"


def exists(host: Host, path: str, hops: int = 8) -> bool:
    """Tell whether a path leads to something, links followed inside the tree."""
    link = host.target(path)
    if link is not None and hops:
        return exists(host, os.path.normpath(os.path.join(os.path.dirname(path), link)), hops - 1)
    return link is None and host.mode(path) is not None


def _is_for(host: Host, path: str, machine: str) -> bool:
    """Tell by its header whether a library is for this processor; what has no such header is not judged."""
    try:
        with open(os.path.realpath(host.at(path)), "rb") as stream:
            head = stream.read(20)
    except OSError:
        return True
    known = machine in PROCESSORS and head.startswith(b"\x7fELF") and len(head) == 20
    return not known or int.from_bytes(head[18:20], "big" if head[5] == 2 else "little") == PROCESSORS[machine]

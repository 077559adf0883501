# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a library lies on this distribution and processor, and which package brings one of the malloc libraries."""

from __future__ import annotations

import os
import re
import stat

from ansible_collections.gpu_fleet.node.plugins.module_utils import _host
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
PROGRAMS = ("/usr/bin/env", "/bin/sh", "/usr/lib/systemd/systemd")  # one of them tells the processor of an image
TRIPLETS = {"ppc64le": "powerpc64le"}  # where Debian has another name for the processor than the kernel
# The number of a processor in the header of a library.
PROCESSORS = {"x86_64": 62, "aarch64": 183, "ppc64le": 21, "riscv64": 243, "s390x": 22}


def folders(machine: str) -> tuple[str, ...]:
    """Return where libraries of a processor lie: Debian's folder names the processor, the others have lib64 or lib."""
    debian = f"{TRIPLETS.get(machine, machine)}-linux-gnu"
    local = (f"/usr/local/lib/{debian}", "/usr/local/lib64", "/usr/local/lib")
    return (
        f"/usr/lib/{debian}",
        "/usr/lib64",
        f"/lib/{debian}",
        "/lib64",
        *local,
        "/usr/lib",
        "/lib",
    )


def processor(host: Host) -> str:
    """Return the processor of a host; that of an image is the one that its programs are for."""
    numbers = [] if host.live else [_number(host, path) for path in PROGRAMS]
    names = [name for name, number in PROCESSORS.items() if number in numbers]
    return names[0] if names else os.uname().machine


def place(host: Host, word: str) -> str:
    """Return the path behind the name of a malloc library or a file name; refuse what is not on this host.

    What only the loader can complete (`$LIB`) is left as it is.
    """
    if word in FILES:
        return find(host, word)
    if "$" in word:
        return word
    machine = processor(host)
    places = [word] if "/" in word else [f"{folder}/{word}" for folder in folders(machine)]
    found = {path: _unfit(host, path, machine) for path in places if path.startswith("/") and exists(host, path)}
    fits = [path for path, why in found.items() if not why]
    if fits:
        return fits[0]
    stem = next((name for name, files in FILES.items() if files.fullmatch(os.path.basename(word))), None)
    wrong = next(iter(found.values()), "is not on this host" if "/" in word else "is in no usual folder")
    raise TuningError(f"{word}: {wrong}, so the loader would complain for every program; {_way(host, stem)}")


def _way(host: Host, stem: str | None) -> str:
    """Return what to do about a library that is not where it was said to be."""
    if stem is None:
        return "give the whole path of a library that is here, or take it out"
    try:
        return f"it is {find(host, stem)} here, which the name {stem} stands for"
    except TuningError:
        return f"install {package(host, stem)}"


def find(host: Host, name: str, machine: str = "") -> str:
    """Return the path of a malloc library; refuse with the package that brings it where there is none."""
    machine = machine or processor(host)
    for folder in folders(machine):
        fits = [one for one in _read.names(host, folder) if FILES[name].fullmatch(one)]
        for base in sorted(fits, key=_newest):
            path = f"{folder}/{base}"
            if not _unfit(host, path, machine):
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


def exists(host: Host, path: str) -> bool:
    """Tell whether a path leads to a file, links followed inside the tree."""
    return _end(host, path) is not None


def _end(host: Host, path: str, hops: int = 8) -> str | None:
    """Return the file that a path leads to; None where there is none."""
    link = host.target(path)
    if link is not None and hops:
        return _end(host, _host.beside(path, link), hops - 1)
    return path if link is None and stat.S_ISREG(host.mode(path) or 0) else None


def _unfit(host: Host, path: str, machine: str) -> str:
    """Return why the loader, started by anybody, could not take a file as a library; nothing where it could."""
    number = _number(host, path)
    if number is None:
        return "is no library"
    if machine in PROCESSORS and number != PROCESSORS[machine]:
        return f"is not for {machine}"
    return "" if _open_to_all(host, path) else "is not for everybody to read"


def _open_to_all(host: Host, path: str) -> bool:
    """Tell whether any user may read a file, by its mode and those of the folders above it."""
    place = host.at(_end(host, path) or path)
    parts = os.path.dirname(os.path.relpath(os.path.realpath(place), host.root)).split("/")
    above = [os.path.join(host.root, *parts[:count]) for count in range(1, len(parts) + 1)]
    return bool(os.stat(place).st_mode & stat.S_IROTH) and all(os.stat(one).st_mode & stat.S_IXOTH for one in above)


def _number(host: Host, path: str) -> int | None:
    """Return the number of the processor that a program or library is for; None for what is neither."""
    end = _end(host, path)
    if end is None:
        return None
    try:
        with open(host.at(end), "rb") as stream:
            head = stream.read(20)
    except OSError:
        return None
    known = head.startswith(b"\x7fELF") and len(head) == 20
    return int.from_bytes(head[18:20], "big" if head[5] == 2 else "little") if known else None

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which malloc a process really runs on: what is mapped, and whether it comes before the C library."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

ALLOCATORS = re.compile(r"lib(jemalloc|tcmalloc|mimalloc)[-_a-z]*\.so(?:\.\d+)*")
GLIBC = re.compile(r"libc(?:-2\.\d+)?\.so(?:\.6)?")
MUSL = re.compile(r"(?:ld-musl-.*|libc\.musl-.*)\.so(?:\.1)?")


@dataclass(frozen=True)
class InForce:
    """The malloc in force with the reason to think so; `name` None where that cannot be told."""

    name: str | None
    library: str | None
    how: str


def files(maps: str) -> list[str]:
    """Return the files that /proc/PID/maps names, each once."""
    rows = (line.split(maxsplit=5) for line in maps.splitlines())
    paths = (row[5].removesuffix(" (deleted)") for row in rows if len(row) == 6 and row[5].startswith("/"))
    return list(dict.fromkeys(paths))


def words(preload: str) -> list[str]:
    """Return the libraries of a preload: blanks and colons part them."""
    return [word for word in re.split(r"[\s:]+", preload) if word]


def judge(mapped: Sequence[str], preloads: Iterable[str] | None, needed: Sequence[str] | None) -> InForce:
    """Return the malloc in force; `preloads` and `needed` (of the program itself) are None where they are unknown.

    The loader asks the preloads first, then the libraries that the program names, in that order. One that another
    library brings, or that is opened later, comes after the C library and serves only who asks it by name.
    """
    present = {os.path.basename(path): path for path in mapped if _allocator(path)}
    library = next((path for path in mapped if _is_libc(path)), None)
    if not present:
        return _alone(library)
    before = takewhile(lambda word: not _is_libc(word), needed or ())
    asked = [("preloaded", word) for word in preloads or ()]
    asked += [("named by the program before the C library", word) for word in before]
    for how, word in asked:
        path = next((path for base, path in present.items() if _same(word, base)), None)
        if path is not None:
            return InForce(_allocator(path), path, how)
    names = ", ".join(present.values())
    if preloads is None or needed is None:
        return InForce(None, None, f"{names}: mapped, but whether it was preloaded or linked cannot be read")
    return InForce(
        _alone(library).name, library, f"{names}: mapped too, but neither preloaded nor named by the program"
    )


def _alone(library: str | None) -> InForce:
    if library is None:
        return InForce(None, None, "no C library is mapped: the program is linked statically and carries its own")
    name = "musl" if MUSL.fullmatch(os.path.basename(library)) else "glibc"
    return InForce(name, library, "mapped, and no other malloc")


def _allocator(path: str) -> str | None:
    found = ALLOCATORS.fullmatch(os.path.basename(path))
    return found[1] if found else None


def _is_libc(path: str) -> bool:
    base = os.path.basename(path)
    return bool(GLIBC.fullmatch(base) or MUSL.fullmatch(base))


def _same(word: str, base: str) -> bool:
    """Tell whether a preload or a needed name means a mapped file: libx.so.2 may be a link to libx.so.2.4.1."""
    name = os.path.basename(word)
    return base == name or base.startswith(f"{name}.") or os.path.basename(os.path.realpath(word)) == base

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The libraries that a program names itself, from its ELF header."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

MAGIC = b"\x7fELF\x02\x01"  # 64 bit, least significant byte first
LOAD, DYNAMIC = 1, 2
END, NEEDED, STRINGS = 0, 1, 5
MOST = 65536  # bytes of one table


def needed(path: str) -> list[str] | None:
    """Return the names in the order of the search; None for what is not such a program or cannot be read."""
    try:
        with open(path, "rb") as stream:
            return _needed(stream)
    except (OSError, struct.error):
        return None


def _needed(stream: BinaryIO) -> list[str] | None:
    head = stream.read(64)
    if not head.startswith(MAGIC):
        return None
    table, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    stream.seek(table)
    segments = [struct.unpack_from("<IIQQQQ", stream.read(size)) for _number in range(count)]
    loads = [(place, start, length) for kind, _flags, place, start, _real, length in segments if kind == LOAD]
    dynamic = next(
        ((place, length) for kind, _flags, place, _start, _real, length in segments if kind == DYNAMIC), None
    )
    if dynamic is None:
        return []
    stream.seek(dynamic[0])
    entries = list(_entries(stream.read(min(dynamic[1], MOST))))
    strings = next((value for tag, value in entries if tag == STRINGS), 0)
    base = next((place + strings - start for place, start, length in loads if start <= strings < start + length), None)
    if base is None:
        return None
    return [_string(stream, base + value) for tag, value in entries if tag == NEEDED]


def _entries(data: bytes) -> Iterator[tuple[int, int]]:
    for tag, value in struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]):
        if tag == END:
            return
        yield tag, value


def _string(stream: BinaryIO, place: int) -> str:
    stream.seek(place)
    return stream.read(256).split(b"\0")[0].decode("ascii", "replace")

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel log as records with the moment they were written."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

PATH = "/dev/kmsg"
RECORD = re.compile(r"(?P<prefix>\d+),\d+,(?P<micros>\d+),[^;]*;(?P<message>.*)")
ONE_RECORD = 8192  # the kernel gives one record for each read, and refuses a buffer that is too small
MOST = 200_000  # a log that grows as fast as it is read must end too


@dataclass(frozen=True)
class Record:
    """One message; `when` is seconds since the epoch, None where the boot time is unknown."""

    message: str
    when: float | None


def read(host: Host) -> tuple[list[Record], str | None]:
    """Return the records, oldest first, and why there are none where the log cannot be read."""
    try:
        descriptor = os.open(host.at(PATH), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return [], f"{PATH}: cannot be read ({error.strerror})"
    try:
        lines = _take(descriptor)
    finally:
        os.close(descriptor)
    return parse("\n".join(lines), _boot_time(host)), None


def parse(content: str, booted: int | None) -> list[Record]:
    """Read records in the form of /dev/kmsg; lines that continue one (they start with a blank) are left out."""
    found = (RECORD.fullmatch(line) for line in content.splitlines())
    return [
        Record(record["message"], None if booted is None else round(booted + int(record["micros"]) / 1e6, 3))
        for record in found
        if record
    ]


def _take(descriptor: int) -> list[str]:
    lines = []
    for _count in range(MOST):
        try:
            piece = os.read(descriptor, ONE_RECORD)
        except BrokenPipeError:
            continue  # the record was overwritten before it was read; the next read goes on behind it
        except OSError:
            break
        if not piece:
            break
        lines.append(piece)
    return b"".join(lines).decode("utf-8", "replace").splitlines()


def _boot_time(host: Host) -> int | None:
    found = re.search(r"^btime (\d+)$", _read.text(host, "/proc/stat") or "", re.MULTILINE)
    return int(found[1]) if found else None

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what the kernel says of the limits of a process."""

from __future__ import annotations

import re

# The row of /proc/PID/limits by the name of the item in limits.conf.
ROWS = {
    "nofile": "Max open files",
    "nproc": "Max processes",
    "memlock": "Max locked memory",
    "stack": "Max stack size",
    "core": "Max core file size",
    "as": "Max address space",
    "data": "Max data size",
    "fsize": "Max file size",
    "rss": "Max resident set",
    "cpu": "Max cpu time",
    "locks": "Max file locks",
    "sigpending": "Max pending signals",
    "msgqueue": "Max msgqueue size",
    "nice": "Max nice priority",
    "rtprio": "Max realtime priority",
}
ROW = re.compile(r"(?P<name>Max .+?)\s{2,}(?P<soft>\d+|unlimited)\s+(?P<hard>\d+|unlimited)")


def read(content: str) -> dict[str, tuple[str, str]]:
    """Return soft and hard by item, as the kernel spells them and in its units."""
    names = {row: item for item, row in ROWS.items()}
    found = (ROW.match(line) for line in content.splitlines())
    return {names[row["name"]]: (row["soft"], row["hard"]) for row in found if row and row["name"] in names}

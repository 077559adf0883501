# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit properties that a set can declare: a table, and the normal form of each form of value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

INFINITY = "infinity"
UNIT = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
PERCENT = re.compile(r"(\d{1,2}(?:\.\d{1,2})?|100(?:\.0+)?)%")
RESERVE = re.compile(r"reserve(?::(.+))?")
GROUPS = ("slice", "service", "scope")  # units that are a control group and take its properties


@dataclass(frozen=True)
class Property:
    """What the manager and the kernel make of one property."""

    name: str
    form: Callable[[str, str], str]  # (what it is for, text) -> normal form
    units: tuple[str, ...] = GROUPS
    show: str = ""  # what systemctl show calls it, where that is another name
    group: bool = True  # a property of the control group: it can be set without a reload, and acts at once
    legacy: bool = True  # it acts on cgroup v1 too
    kernel: tuple[str, str, str] = ("", "", "")  # controller, file of v2, file of v1
    empty: str = ""  # the value that stands for "not set", which an empty assignment gives back


def size(name: str, text: str) -> str:
    """Return bytes, infinity, or a share that only a host can turn into bytes."""
    if text.lower() in (INFINITY, "max", "unlimited"):
        return INFINITY
    if PERCENT.fullmatch(text):
        return text
    reserve = RESERVE.fullmatch(text)
    if reserve:
        return text if reserve[1] is None else f"reserve:{_amount(name, reserve[1])}"
    return amount(name, text)


def _amount(name: str, text: str) -> str:
    return text if PERCENT.fullmatch(text) else amount(name, text)


def amount(name: str, text: str) -> str:
    """Return bytes of a number with a suffix of base 1024."""
    found = SIZE.fullmatch(text.upper().rstrip("IB") if text[-1:] in "bB" else text.upper())
    if not found:
        raise TuningError(f"{name}: {text!r} is no size, expected bytes, a suffix K, M, G or T, per cent, or infinity")
    return str(int(float(found[1]) * UNIT[found[2]]) if "." in found[1] else int(found[1]) * UNIT[found[2]])


def tasks(name: str, text: str) -> str:
    """Return a number of tasks, infinity, or a share."""
    if text.lower() in (INFINITY, "max", "unlimited"):
        return INFINITY
    if PERCENT.fullmatch(text) or (text.isdigit() and int(text)):
        return text if "%" in text else str(int(text))
    raise TuningError(f"{name}: {text!r} is no number of tasks, expected a number above 0, per cent, or infinity")


def weight(name: str, text: str) -> str:
    """Return a weight of 1 to 10000, or idle."""
    if text == "idle" or (text.isdigit() and 1 <= int(text) <= 10000):
        return text if text == "idle" else str(int(text))
    raise TuningError(f"{name}: {text!r} is no weight, expected 1 to 10000 or idle")


def quota(name: str, text: str) -> str:
    """Return a share of one CPU in per cent, which may be above 100."""
    if re.fullmatch(r"\d+%", text) and int(text[:-1]):
        return f"{int(text[:-1])}%"
    raise TuningError(f"{name}: {text!r} is no CPU quota, expected per cent of one CPU such as 400%")


def cpus(name: str, text: str) -> str:
    """Return a list of CPUs or nodes in its shortest spelling."""
    numbers: set[int] = set()
    for part in re.split(r"[,\s]+", text):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise TuningError(f"{name}: {text!r} is no list of numbers such as 0-3,8")
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return ranges(numbers)


def ranges(numbers: set[int]) -> str:
    """Spell a set of numbers as systemd does."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def words(*known: str) -> Callable[[str, str], str]:
    """Return a form that takes these words only."""

    def form(name: str, text: str) -> str:
        if text not in known:
            raise TuningError(f"{name}: {text!r} is not offered, expected one of {', '.join(known)}")
        return text

    return form


def pressure(name: str, text: str) -> str:
    """Return a share of 0 to 100 per cent."""
    if not PERCENT.fullmatch(text):
        raise TuningError(f"{name}: {text!r} is no share, expected per cent from 0% to 100%")
    return f"{float(text[:-1]):g}%"


def score(name: str, text: str) -> str:
    """Return a score of the OOM killer."""
    if re.fullmatch(r"-?\d+", text) and -1000 <= int(text) <= 1000:
        return str(int(text))
    raise TuningError(f"{name}: {text!r} is no OOM score, expected a number from -1000 to 1000")


def limit(read: Callable[[str, str], str]) -> Callable[[str, str], str]:
    """Return a form for soft:hard, or one value for both."""

    def form(name: str, text: str) -> str:
        soft, colon, hard = text.partition(":")
        pair = [_limit(name, one, read) for one in ((soft, hard) if colon else (text, text))]
        if pair[1] != INFINITY and (pair[0] == INFINITY or int(pair[0]) > int(pair[1])):
            raise TuningError(f"{name}: the soft limit {pair[0]} is above the hard limit {pair[1]}")
        return ":".join(pair)

    return form


def _limit(name: str, text: str, read: Callable[[str, str], str]) -> str:
    return INFINITY if text.lower() in (INFINITY, "unlimited", "-1") else read(name, text)


def count(name: str, text: str) -> str:
    """Return a plain number."""
    if not text.isdigit():
        raise TuningError(f"{name}: {text!r} is neither a number nor infinity")
    return str(int(text))


MEMORY = {"MemoryMax": "max", "MemoryHigh": "high", "MemoryLow": "low", "MemorySwapMax": "swap.max"}
LIMITS = {"NOFILE": count, "NPROC": count, "RTPRIO": count}
LIMITS.update(dict.fromkeys(("MEMLOCK", "STACK", "CORE", "AS", "DATA", "FSIZE"), amount))


def _table() -> Mapping[str, Property]:
    rows = [
        Property(
            name,
            size,
            legacy=name == "MemoryMax",
            kernel=("memory", f"memory.{file}", "memory.limit_in_bytes" if name == "MemoryMax" else ""),
        )
        for name, file in MEMORY.items()
    ]
    rows += [
        Property("TasksMax", tasks, kernel=("pids", "pids.max", "pids.max")),
        Property("CPUWeight", weight, kernel=("cpu", "cpu.weight", ""), empty="[not set]"),
        Property("CPUQuota", quota, show="CPUQuotaPerSecUSec", empty=INFINITY),
        Property("AllowedCPUs", cpus, legacy=False, kernel=("cpuset", "cpuset.cpus", "")),
        Property("AllowedMemoryNodes", cpus, legacy=False, kernel=("cpuset", "cpuset.mems", "")),
        Property("ManagedOOMSwap", words("auto", "kill"), legacy=False),
        Property("ManagedOOMMemoryPressure", words("auto", "kill"), legacy=False),
        Property("ManagedOOMMemoryPressureLimit", pressure, legacy=False),
        Property("OOMPolicy", words("continue", "stop", "kill"), ("service", "scope"), group=False),
        Property("OOMScoreAdjust", score, ("service",), group=False),
        Property("DefaultTasksMax", tasks, ("manager",), group=False),
    ]
    for name, read in LIMITS.items():
        rows.append(Property(f"Limit{name}", limit(read), ("service",), group=False))
        rows.append(Property(f"DefaultLimit{name}", limit(read), ("manager",), group=False))
    return {row.name: row for row in rows}


PROPERTIES = _table()

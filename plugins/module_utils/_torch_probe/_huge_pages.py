# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 9: the huge pages that really stand behind a buffer of torch and of NumPy, against what the mode promises."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import _cgroup
from ._report import MIB, Context, Finding, Measure, Row, Status

ROOT = "/sys/kernel/mm/transparent_hugepage"
PR_GET_THP_DISABLE = 42
AREA = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ")


def check(context: Context) -> Iterator[Finding]:
    """Look behind a buffer of each library."""
    mode = chosen("enabled")
    if mode is None:
        yield Row(
            "huge_pages",
            "unknown",
            reason=f"{ROOT}/enabled cannot be read",
            action="use a kernel with transparent huge pages",
        )
        return
    torch, numpy = context.torch, context.numpy
    size = max(context.options["mib"] * MIB, 2 * page_size())
    yield from behind("torch", torch_asks(), size, lambda: touched_tensor(torch, size))
    if numpy is None:
        yield Row("huge_pages.numpy", "skip", reason="this interpreter has no NumPy")
        return
    yield from behind(
        "numpy", os.environ.get("NUMPY_MADVISE_HUGEPAGE", "1") != "0", size, lambda: touched_array(numpy, size)
    )


def touched_tensor(torch: Any, size: int) -> tuple[Any, int, float]:
    """Return a buffer of torch, where it lies and how long its first touch took."""
    tensor = torch.empty(size, dtype=torch.uint8)
    started = time.monotonic()
    tensor.fill_(1)
    return tensor, tensor.data_ptr(), time.monotonic() - started


def touched_array(numpy: Any, size: int) -> tuple[Any, int, float]:
    """Return the same of NumPy."""
    array = numpy.empty(size, dtype=numpy.uint8)
    started = time.monotonic()
    array.fill(1)
    return array, array.ctypes.data, time.monotonic() - started


def chosen(name: str) -> str | None:
    """Return the bracketed word of a switch; the one for the usual page size wins over the general one."""
    found = re.search(r"\[(\S+)\]", _cgroup.text(f"{ROOT}/{name}") or "")
    per_size = re.search(r"\[(\S+)\]", _cgroup.text(f"{ROOT}/hugepages-{page_size() >> 10}kB/{name}") or "")
    if per_size and per_size.group(1) != "inherit":
        return per_size.group(1)
    return found.group(1) if found else None


def page_size() -> int:
    """Return the size of a huge page."""
    return _cgroup.number(f"{ROOT}/hpage_pmd_size") or 2 * MIB


def disabled() -> bool:
    """Tell whether this process was cut off from huge pages (prctl), whatever the mode."""
    return bool(ctypes.CDLL(None).prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1)


def torch_asks() -> bool:
    """Tell whether torch's CPU buffers ask for huge pages: by its own variable, or through glibc's."""
    return os.environ.get("THP_MEM_ALLOC_ENABLE") == "1" or "glibc.malloc.hugetlb=1" in os.environ.get(
        "GLIBC_TUNABLES", ""
    )


def huge_bytes(address: int, size: int) -> int | None:
    """Return the bytes in huge pages of the areas that hold a buffer."""
    total, inside, seen = 0, False, False
    for line in (_cgroup.text("/proc/self/smaps") or "").splitlines():
        area = AREA.match(line)
        if area:
            inside = int(area.group(1), 16) < address + size and int(area.group(2), 16) > address
            seen = seen or inside
        elif inside and line.startswith("AnonHugePages:"):
            total += int(line.split()[1]) * 1024
    return min(total, size) if seen else None


def behind(name: str, asks: bool, size: int, make: Callable[[], tuple[Any, int, float]]) -> Iterator[Finding]:
    """Compare one buffer with what mode and request promise."""
    buffer, address, seconds = make()
    found = huge_bytes(address, size)
    del buffer
    yield Measure(f"huge_pages.{name}.first_touch", round(seconds / size * 2**30, 4), "s/GiB")
    if found is None:
        yield Row(
            f"huge_pages.{name}",
            "unknown",
            reason="/proc/self/smaps does not show the buffer",
            action="mount /proc fully",
        )
        return
    yield Measure(f"huge_pages.{name}.share", round(found / size, 3), "of the buffer")
    yield verdict(name, asks, found, size)


def verdict(name: str, asks: bool, found: int, size: int) -> Row:
    """Return the row: promised and missing fails, unless the kernel need not try at once."""
    mode, defrag = chosen("enabled"), chosen("defrag")
    promised = not disabled() and (mode == "always" or (mode == "madvise" and asks))
    source = f"transparent_hugepage/enabled is {mode}, {name} {'asks' if asks else 'does not ask'}"
    source += ", and this process is cut off (prctl)" if disabled() else ""
    full = f"huge_pages.{name}"
    if not promised:
        status: Status = "pass" if found == 0 else "warn"
        return Row(
            full,
            status,
            found,
            0,
            "bytes",
            source,
            "" if found == 0 else "somebody else asks for huge pages in this process (malloc)",
        )
    if found >= size // 2:
        return Row(full, "pass", found, f"at least {size // 2}", "bytes", source)
    tries = defrag == "always" or (asks and defrag in ("madvise", "defer+madvise"))
    action = "no huge pages are at hand: set defrag to madvise, free or compact memory, or reboot"
    return Row(
        full,
        "fail" if tries else "warn",
        found,
        f"at least {size // 2}",
        "bytes",
        source,
        action,
        f"defrag is {defrag}",
    )

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A machine on a temporary tree: real files, and a kernel that answers writes the way the real one does."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _run
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host

from .manager import Manager

THP = "/sys/kernel/mm/transparent_hugepage"
TREE = {
    "/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    "/proc/sys/vm/swappiness": "60\n",
    "/proc/sys/vm/max_map_count": "65530\n",
    "/proc/sys/vm/min_free_kbytes": "67584\n",
    "/proc/sys/vm/dirty_ratio": "20\n",
    "/proc/sys/vm/dirty_bytes": "0\n",
    "/proc/sys/vm/dirty_background_ratio": "10\n",
    "/proc/sys/vm/dirty_background_bytes": "0\n",
    "/proc/sys/vm/drop_caches": "0\n",
    "/proc/sys/kernel/sem": "32000\t1024000000\t500\t32000\n",
    "/proc/sys/kernel/kexec_load_disabled": "0\n",
    "/proc/sys/kernel/numa_balancing": "1\n",
    "/proc/sys/fs/nr_open": "1048576\n",
    "/proc/sys/net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
    "/proc/sys/net/ipv4/tcp_retries2": "15\n",
    "/proc/sys/net/ipv4/conf/eth0.100/rp_filter": "0\n",
    f"{THP}/enabled": "[always] madvise never\n",
    f"{THP}/defrag": "always defer defer+madvise [madvise] never\n",
    f"{THP}/shmem_enabled": "always within_size advise [never] deny force\n",
    f"{THP}/khugepaged/max_ptes_none": "511\n",
    "/proc/meminfo": "MemTotal:       65536000 kB\nSwapTotal:             0 kB\n",
    "/proc/sys/kernel/pid_max": "4194304\n",
    "/proc/sys/kernel/threads-max": "500000\n",
    "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
    "/run/systemd/system/keep": "",
    "/run/systemd/mind.json": "{}",
    "/usr/lib/systemd/system/slurmd.service": "[Service]\nLimitMEMLOCK=65536\n",
    "/usr/lib/systemd/system/user-.slice.d/10-defaults.conf": "[Slice]\nTasksMax=165000\n",
    "/usr/lib/systemd/systemd": "",
    "/usr/lib/sysctl.d/50-default.conf": "kernel.sysrq = 16\n",
    "/etc/tmpfiles.d/keep.conf": "d /run/keep\n",
    "/etc/sysctl.d/README": "read me\n",
    "/var/lib/keep": "",
}


def kernel(place: str, text: str) -> None:
    """Take a write as the kernel would: choices are refused or chosen, faces silence each other, numbers are stored."""
    path = Path(place)
    before = path.read_text()
    if "[" in before:
        words = before.replace("[", "").replace("]", "").split()
        if text not in words:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), place)
        path.write_text(" ".join(f"[{word}]" if word == text else word for word in words) + "\n")
        return
    face = re.fullmatch(r"(dirty(?:_background)?)_(ratio|bytes)", path.name)
    if face:
        if face[2] == "bytes" and int(text) < 8192:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), place)
        path.with_name(f"{face[1]}_{'bytes' if face[2] == 'ratio' else 'ratio'}").write_text("0\n")
    path.write_text("\t".join(text.split()) + "\n")


class Box(Host):
    """A host on a temporary tree; `read_only` holds the paths whose opening for writing says so."""

    read_only: tuple[str, ...] = ()
    most: int | None = None  # the highest hard limit that a process can have here

    def obstacle(self, path: str) -> str | None:
        """Refuse what the test made read-only: the tester may be root, for whom no file mode is one."""
        return "read-only file system" if path.startswith(self.read_only or ("\0",)) else super().obstacle(path)

    def allows(self, _limit: int, hard: int) -> bool:
        """Answer for the machine, whatever the tester may have."""
        return self.most is None or 0 <= hard <= self.most


def build(root: Path, tree: dict[str, str] | None = None, **more: str | None) -> Box:
    """Build the tree; values of None take a file out of it."""
    for path, content in {**TREE, **(tree or {}), **more}.items():
        place = root / path.lstrip("/")
        if content is None:
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)
    return Box(str(root), live=True, kernel=kernel, runner=Manager(root))


def reopen(host: Host) -> Box:
    """Return the same machine as a new run finds it."""
    return Box(host.root, live=True, kernel=kernel, runner=Manager(Path(host.root)))


def tune(host: Host, *sets: dict[str, Any], check: bool = False, **params: Any) -> dict[str, Any]:
    """Run the module's call; its warnings come under a key of their own."""
    result, warnings = _run.tune(host, {"sets": list(sets), "lock_timeout": 5, **params}, check)
    return {**result, "warned": warnings}


def inform(host: Host, *sets: dict[str, Any]) -> dict[str, Any]:
    """Run the audit."""
    result, warnings = _run.inform(host, {"sets": list(sets)})
    return {**result, "warned": warnings}


def units(name: str, **declared: dict[str, Any]) -> dict[str, Any]:
    """Declare properties of units; `__` in a name stands for a dash, and a word for a suffix after the last `_`."""
    rows = []
    for word, properties in declared.items():
        stem, _line, suffix = word.rpartition("_")
        unit = f"{stem.replace('__', '-')}.{suffix}" if stem else word
        rows += [{"unit": unit, "property": key, "value": value} for key, value in properties.items()]
    return {"name": name, "units": rows}


def sysctl(name: str = "memory", floors: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    """Declare a set of sysctl keys; `__` in a name stands for a dot."""
    exact = [{"key": key.replace("__", "."), "value": value} for key, value in values.items()]
    least = [{"key": key, "value": value, "rule": "at_least"} for key, value in (floors or {}).items()]
    return {"name": name, "sysctl": exact + least}


def thp(name: str = "pages", **values: str) -> dict[str, Any]:
    """Declare a set of huge page switches."""
    rows = [{"path": f"{THP}/{key}", "value": value, "when_missing": "never"} for key, value in values.items()]
    return {"name": name, "sysfs": rows}


def picture(host: Host) -> dict[str, tuple[str, int, bytes]]:
    """Return everything on the tree: type and mode, owner, content."""
    found = {}
    for place in sorted(Path(host.root).rglob("*")):
        status = place.lstat()
        file = place.read_bytes() if place.is_file() else b""
        content = os.readlink(place).encode() if place.is_symlink() else file
        if place.name == "mind.json":
            content = Manager(Path(host.root)).beyond_files()
        found["/" + str(place.relative_to(host.root))] = (oct(status.st_mode), status.st_uid, content)
    return found


def live(host: Host, path: str) -> str:
    """Return what the kernel says."""
    return (Path(host.root) / path.lstrip("/")).read_text().strip()

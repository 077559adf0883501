# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record the state of a host that tuning could touch, and compare two records; needs nothing but Python."""

from __future__ import annotations

import argparse
import base64
import fnmatch
import functools
import grp
import hashlib
import json
import os
import pwd
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

Record = dict[str, str]
Snapshot = dict[str, Record]

VALUES = ("/proc/sys", "/sys/kernel/mm")
FILES = ("/etc", "/usr/lib", "/usr/local", "/var/lib")

# What changes by itself, each with its reason. A pattern covers the path and all below it.
IGNORED = (
    ("/proc/sys/fs/aio-nr", "counts requests"),
    ("/proc/sys/fs/binfmt_misc", "mounted when somebody looks at it"),
    ("/proc/sys/fs/dentry-state", "counts cache entries"),
    ("/proc/sys/fs/file-nr", "counts open files"),
    ("/proc/sys/fs/inode-nr", "counts cache entries"),
    ("/proc/sys/fs/inode-state", "counts cache entries"),
    ("/proc/sys/fs/quota", "counts quota operations"),
    ("/proc/sys/kernel/keys/gc_*", "counts key collections"),
    ("/proc/sys/kernel/ns_last_pid", "the last process number"),
    ("/proc/sys/kernel/perf_event_max_sample_rate", "lowered by the kernel itself when sampling is slow"),
    ("/proc/sys/kernel/pty/nr", "counts terminals"),
    ("/proc/sys/kernel/random/boot_id", "new at each boot"),
    ("/proc/sys/kernel/random/entropy_avail", "the state of the random pool"),
    ("/proc/sys/kernel/random/uuid", "new at each reading"),
    ("/proc/sys/net/netfilter/nf_conntrack_count", "counts connections"),
    ("/proc/sys/vm/user_reserve_kbytes", "computed at boot from the memory that was free then"),
    ("/sys/kernel/mm/cma/*/alloc_pages_*", "counts allocations"),
    ("/sys/kernel/mm/hugepages/*/free_hugepages", "counts pages in use"),
    ("/sys/kernel/mm/hugepages/*/resv_hugepages", "counts pages in use"),
    ("/sys/kernel/mm/hugepages/*/surplus_hugepages", "counts pages in use"),
    ("/sys/kernel/mm/ksm/full_scans", "counts scans"),
    ("/sys/kernel/mm/ksm/general_profit", "a result of scans"),
    ("/sys/kernel/mm/ksm/ksm_zero_pages", "counts pages"),
    ("/sys/kernel/mm/ksm/pages_[!t]*", "counts pages; pages_to_scan is a setting"),
    ("/sys/kernel/mm/ksm/stable_node_[!c]*", "counts nodes"),
    ("/sys/kernel/mm/ksm/stable_node_chains", "counts nodes"),
    ("/sys/kernel/mm/page_idle", "a bit for each page of memory"),
    ("/sys/kernel/mm/transparent_hugepage/hugepages-*/stats", "counts events"),
    ("/sys/kernel/mm/transparent_hugepage/khugepaged/full_scans", "counts scans"),
    ("/sys/kernel/mm/transparent_hugepage/khugepaged/pages_collapsed", "counts pages"),
    ("/etc/adjtime", "the drift of the clock"),
    ("/etc/resolv.conf", "follows the network"),
    ("/var/lib/NetworkManager", "leases and time stamps"),
    ("/var/lib/apt/lists", "package lists, refreshed by a timer"),
    ("/var/lib/apt/periodic", "time stamps"),
    ("/var/lib/chrony", "the drift of the clock"),
    ("/var/lib/containers", "the storage of running containers"),
    ("/var/lib/dhcp", "leases"),
    ("/var/lib/dnf", "package history, refreshed by a timer"),
    ("/var/lib/docker", "the storage of running containers"),
    ("/var/lib/logrotate", "time stamps"),
    ("/var/lib/rpm/.rpm.lock", "made by any query"),
    ("/var/lib/rsyslog", "the place in the journal"),
    ("/var/lib/sudo", "who has seen the lecture"),
    ("/var/lib/systemd/coredump", "crashes"),
    ("/var/lib/systemd/random-seed", "new at each boot"),
    ("/var/lib/systemd/timers", "time stamps"),
    ("/var/lib/systemd/timesync", "a time stamp"),
)


def ignored(path: str) -> bool:
    """Tell whether a path changes by itself."""
    return any(fnmatch.fnmatchcase(path, pattern) for known, _reason in IGNORED for pattern in (known, f"{known}/*"))


def _walk(root: Path, top: str) -> Iterator[tuple[str, Path]]:
    """Yield every path at and below `top` that is not ignored, with its place under `root`."""
    if ignored(top):
        return
    place = root / top.lstrip("/")
    if place.is_symlink() or place.exists():
        yield top, place
    if place.is_dir() and not place.is_symlink():
        for name in sorted(os.listdir(place)):
            yield from _walk(root, f"{top}/{name}")


def _value(place: Path) -> Record | None:
    """Read a kernel value; None when it cannot be read."""
    try:
        return {"value": place.read_bytes().decode(errors="backslashreplace")}
    except OSError:
        return None


def _content(place: Path, mode: int) -> str:
    """Describe what a file holds, by a hash for regular files."""
    if stat.S_ISLNK(mode):
        return os.readlink(place)
    if not stat.S_ISREG(mode):
        return ""
    digest = hashlib.sha256()
    with place.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@functools.cache
def _names() -> tuple[dict[int, str], dict[int, str]]:
    """Return the names of all users and of all groups."""
    return {entry.pw_uid: entry.pw_name for entry in pwd.getpwall()}, {
        entry.gr_gid: entry.gr_name for entry in grp.getgrall()
    }


def _file(place: Path) -> Record | None:
    """Record a file, folder or link; None when it has gone since it was listed."""
    try:
        return _described(place)
    except FileNotFoundError:
        return None


def _described(place: Path) -> Record:
    """Read type and mode, content, owner, group and extended attributes."""
    status, (users, groups) = place.lstat(), _names()
    attributes = {
        name: base64.b64encode(os.getxattr(place, name, follow_symlinks=False)).decode()
        for name in sorted(os.listxattr(place, follow_symlinks=False))
    }
    return {
        "mode": stat.filemode(status.st_mode),
        "content": _content(place, status.st_mode),
        "owner": users.get(status.st_uid, str(status.st_uid)),
        "group": groups.get(status.st_gid, str(status.st_gid)),
        "xattrs": json.dumps(attributes),
    }


def take(root: Path, values: Sequence[str] = VALUES) -> Snapshot:
    """Record all values and files below a root."""
    result: Snapshot = {}
    for reader, tops in ((_value, values), (_file, FILES)):
        for top in tops:
            for path, place in _walk(root, top):
                record = reader(place)
                if record is not None:
                    result[path] = record
    return result


def compare(before: Snapshot, after: Snapshot) -> list[str]:
    """List every difference, a line each."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        if path not in after or path not in before:
            lines.append(f"{path}: {'removed' if path in before else 'added'}")
            continue
        old, new = before[path], after[path]
        lines += [f"{path}: {field}: {old[field]!r} -> {new[field]!r}" for field in old if old[field] != new.get(field)]
    return lines


def main() -> int:
    """Do what the command line says; 1 means that there are differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    taking = verbs.add_parser("take", help="record this host")
    taking.add_argument("output", type=Path)
    taking.add_argument("--root", type=Path, default=Path("/"))
    taking.add_argument("--values", nargs="+", default=VALUES, help="where values are read")
    comparing = verbs.add_parser("compare", help="print the differences of two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.verb == "take":
        given.output.write_text(json.dumps(take(given.root, given.values), indent=0), encoding="utf-8")
        return 0
    lines = compare(*(json.loads(path.read_text(encoding="utf-8")) for path in (given.before, given.after)))
    print("\n".join([*lines, f"{len(lines)} differences"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who was killed for want of memory, when, and by which limit: from the kernel log and from the control groups."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _cgroup
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _kernel_log, _read

MOST_GROUPS = 5000
CAUSE = re.compile(r"oom-kill:constraint=(CONSTRAINT_\w+),")
KILLED = re.compile(
    r"(?P<how>Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?)?[:,]? ?"
    r"Kill(?:ed)? process (?P<pid>\d+) \((?P<command>.*?)\)(?=,|$| total-vm:| score )"
)
SIZES = re.compile(r"(anon-rss|file-rss|shmem-rss|total-vm):(\d+)kB")
LIMIT_OF = re.compile(r"Task in (?P<task>\S+) killed as a result of limit of (?P<group>\S+)")
SCOPES = {
    "CONSTRAINT_MEMCG": "cgroup",
    "CONSTRAINT_NONE": "host",
    "CONSTRAINT_CPUSET": "cpuset",
    "CONSTRAINT_MEMORY_POLICY": "memory_policy",
}
UNITS = (".slice", ".scope", ".service")
FILES = ("memory.", "cgroup.", "cpu.", "cpuset.", "pids.", "io.", "hugetlb.", "rdma.", "misc.")  # saves asking for each
EVENTS = ("oom", "oom_kill", "oom_group_kill", "max", "high")


def gather(scene: Scene) -> dict[str, Any]:
    """Return the kills that the log remembers and the groups that count some."""
    records, reason = _kernel_log.read(scene.host)
    counted, cut = groups(scene.host)
    return {
        "kills": None if reason else kills(records),
        "log_source": _kernel_log.PATH,
        "log_reason": reason,
        "groups": counted,
        "groups_source": _cgroup.ROOT,
        "groups_reason": f"only the first {MOST_GROUPS} groups were looked at" if cut else None,
    }


def kills(records: Sequence[_kernel_log.Record]) -> list[dict[str, Any]]:
    """Read the kills in the order of the log; the line with the constraint comes before that with the victim."""
    found: list[dict[str, Any]] = []
    cause: dict[str, str] = {}
    for record in records:
        started = CAUSE.search(record.message)
        older = LIMIT_OF.search(record.message)
        killed = KILLED.search(record.message)
        if started:
            cause = {"scope": SCOPES.get(started[1], started[1]), **_pairs(record.message)}
        elif older:
            cause = {"scope": "cgroup", "oom_memcg": older["group"], "task_memcg": older["task"]}
        elif killed:
            # Older kernels name the victim twice, the second time with its sizes and without the reason.
            if killed["how"] or not found or found[-1]["pid"] != int(killed["pid"]):
                found.append(_kill(record, killed, cause))
            found[-1].update(_sizes(record.message))
    return found


def _pairs(message: str) -> dict[str, str]:
    return {name: value for name, _equals, value in (part.partition("=") for part in message.split(",")) if value}


def _kill(record: _kernel_log.Record, killed: re.Match[str], cause: dict[str, str]) -> dict[str, Any]:
    how = killed["how"] or ""
    scope = cause.get("scope") or ("cgroup" if how.startswith("Memory cgroup") else "host" if how else None)
    if how.startswith("Memory cgroup") != (scope == "cgroup") and how:
        cause, scope = {}, "cgroup" if how.startswith("Memory cgroup") else "host"
    same = cause.get("pid") in (None, killed["pid"])
    user = re.search(r"UID:? ?(\d+)", record.message)
    when = record.when
    return {
        "when": when,
        "time": None if when is None else datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "pid": int(killed["pid"]),
        "command": killed["command"],
        "uid": int(user[1]) if user else int(cause["uid"]) if same and cause.get("uid", "").isdigit() else None,
        "scope": scope,
        "limit_group": cause.get("oom_memcg"),
        "task_group": cause.get("task_memcg") if same else None,
        "anon_rss": None,
        "file_rss": None,
        "shmem_rss": None,
        "total_vm": None,
    }


def _sizes(message: str) -> dict[str, int]:
    return {name.replace("-", "_"): int(size) * 1024 for name, size in SIZES.findall(message)}


def groups(host: Host) -> tuple[list[dict[str, Any]], bool]:
    """Return each control group that counts a kill or a refusal, and whether some were not looked at."""
    found = _cgroup.folder(host, "memory")
    if found is None:
        return [], False
    version, root = found
    rows = []
    for seen, folder in enumerate(_walk(host, root), 1):
        row = _second(host, folder) if version == 2 else _first(host, folder)
        if row["oom_kill"] or row["oom"]:
            rows.append({"group": folder[len(root) :] or "/", **row})
        if seen == MOST_GROUPS:
            return rows, True
    return rows, False


def _walk(host: Host, root: str) -> Iterator[str]:
    todo = [root]
    while todo:
        folder = todo.pop()
        yield folder
        names = [name for name in _read.names(host, folder) if name.endswith(UNITS) or not name.startswith(FILES)]
        todo += [path for name in reversed(names) if stat.S_ISDIR(host.mode(path := f"{folder}/{name}") or 0)]


def _events(host: Host, path: str) -> dict[str, int]:
    rows = (line.split() for line in (_read.text(host, path) or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _second(host: Host, folder: str) -> dict[str, Any]:
    """Read the counters of version 2: they count the groups below as well; `own` counts this group alone."""
    events = _events(host, f"{folder}/memory.events")
    own = _events(host, f"{folder}/memory.events.local")
    counts = {name: events.get(name) for name in EVENTS}
    return {**counts, "own_oom_kill": own.get("oom_kill"), "source": f"{folder}/memory.events"}


def _first(host: Host, folder: str) -> dict[str, Any]:
    """Read the counters of version 1, where each group counts for itself."""
    control = _events(host, f"{folder}/memory.oom_control")
    killed = control.get("oom_kill")
    refused = _read.number(host, f"{folder}/memory.failcnt")
    counts: dict[str, Any] = {**dict.fromkeys(EVENTS), "oom_kill": killed, "max": refused}
    return {**counts, "own_oom_kill": killed, "source": f"{folder}/memory.oom_control"}

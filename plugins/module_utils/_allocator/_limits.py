# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource limits of a login, of a service and of a running process, which are three different things."""

from __future__ import annotations

import grp
import os
import pwd
import re
from typing import Any, Union

from ansible_collections.gpu_fleet.node.plugins.module_utils import _effective_limits, _process_limits
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _processes
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._figures import Missing, group, text
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._effective_limits import User
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _limits as _kind
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

# What one unit of limits.conf is in the kernel's unit, where that is not one.
UNITS = {"memlock": 1024, "stack": 1024, "core": 1024, "as": 1024, "data": 1024, "fsize": 1024, "rss": 1024, "cpu": 60}
ALWAYS = ("nofile", "nproc", "memlock", "stack", "core", "as")  # told of each login, set or not
INHERITED = "no line sets it, so a login has what the program has that lets it in"
Value = Union[int, str, None]  # a number in the kernel's unit, or `unlimited`
Table = dict[str, dict[str, Value]]


def gather(scene: Scene) -> dict[str, Any]:
    """Return all three, and what the caller itself has."""
    path = "/proc/self/limits"
    content = text(scene.host, path)
    own = {"limits": content if isinstance(content, Missing) else read_table(content)}
    return {
        "caller": group(path, own),
        "logins": logins(scene),
        "services": services(scene),
        "processes": processes(scene),
    }


def logins(scene: Scene) -> list[dict[str, Any]]:
    """Return what pam_limits gives each named user, or the one who asks."""
    host = scene.host
    files = _effective_limits.files(host)
    unused = _kind.persistence(host)
    own = _name(os.geteuid())
    return [_login(host, name, files, unused) for name in scene.options.users or [own]]


def _login(host: Host, name: str, files: list[_effective_limits.File], unused: str | None) -> dict[str, Any]:
    user, groups = account(host, name)
    limits: dict[str, Any] = {}
    reason = unused
    for path, content in files:
        number = _effective_limits.exempted(content, user, groups)
        if number is not None:
            reason = f"{path}:{number}: takes {name} out of all limits"
    found = {} if unused else _effective_limits.effective(files, user, groups)
    for item in dict.fromkeys((*ALWAYS, *found)):
        limits[item] = _item(host, item, found.get(item, _effective_limits.Limit()), reason)
    known = None if user.uid is not None else f"{name}: no such user, so lines for groups and ids do not count"
    return {"user": name, "uid": user.uid, "groups": sorted(groups), "limits": limits, "reason": known or reason}


def _item(host: Host, item: str, limit: _effective_limits.Limit, reason: str | None) -> dict[str, Any]:
    """Return one limit of a login; what the kernel would refuse is not what a login gets."""
    nr_open = _read.number(host, "/proc/sys/fs/nr_open")
    values = {end: value(item, getattr(limit, end), nr_open) for end in ("soft", "hard")}
    root = host.live and os.geteuid() == 0  # who else tries learns nothing about logins
    hard = limit.hard or ""
    if root and (hard == "unlimited" or hard.isdigit()) and _kind.obstacle(host, f"* hard {item}", hard) is not None:
        values = dict.fromkeys(values)
        reason = f"{limit.hard_source}: asks for {hard}, which not even root may have here"
    sources = {f"{end}_source": getattr(limit, f"{end}_source") for end in ("soft", "hard")}
    return {**values, **sources, "reason": (reason or INHERITED) if None in values.values() else None}


def value(item: str, word: str | None, nr_open: int | None) -> Value:
    """Return a limit of limits.conf in the kernel's unit; no limit on open files means fs.nr_open."""
    if word is None or (word == "unlimited" and item != "nofile"):
        return word
    if word == "unlimited":
        return word if nr_open is None else nr_open
    number = re.match(r"-?\d+", word)
    if number is None:
        return None
    if item == "nice":  # the kernel counts upwards, from 1 for the lowest priority to 40
        return 20 - int(number[0])
    return int(number[0]) * UNITS.get(item, 1)


def account(host: Host, name: str) -> tuple[User, dict[str, int]]:
    """Return a user with its groups: from the name service on a live host, else from the files of the tree."""
    by_name = _debian(_read.text(host, "/etc/os-release") or "")
    if not host.live:
        return _in_files(host, name, by_name)
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return User(name, root_by_name=by_name), {}
    numbers = os.getgrouplist(name, entry.pw_gid)
    return User(name, entry.pw_uid, entry.pw_gid, by_name), {_group(number): number for number in numbers}


def _in_files(host: Host, name: str, by_name: bool) -> tuple[User, dict[str, int]]:
    users = [line.split(":") for line in (_read.text(host, "/etc/passwd") or "").splitlines()]
    row = next((user for user in users if user[0] == name and len(user) > 3 and user[3].isdigit()), None)
    if row is None:
        return User(name, root_by_name=by_name), {}
    groups = [line.split(":") for line in (_read.text(host, "/etc/group") or "").splitlines()]
    ours = [one for one in groups if len(one) == 4 and (one[2] == row[3] or name in one[3].split(","))]
    return User(name, int(row[2]), int(row[3]), by_name), {one[0]: int(one[2]) for one in ours}


def _debian(release: str) -> bool:
    """Tell whether this PAM comes from Debian, where wildcard and group lines do not reach root."""
    rows = dict(line.split("=", 1) for line in release.splitlines() if "=" in line)
    names = f"{rows.get('ID', '')} {rows.get('ID_LIKE', '')}".replace('"', "").split()
    return bool({"debian", "ubuntu"} & set(names)) or not names


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def read_table(content: str) -> Table:
    """Read /proc/PID/limits in the kernel's units."""
    return {
        item: {"soft": _word(soft), "hard": _word(hard)} for item, (soft, hard) in _process_limits.read(content).items()
    }


def _word(word: str) -> Value:
    """Return a limit as systemd or the kernel prints it; None for what is neither a number nor without end."""
    if word in ("unlimited", "infinity", str(2**64 - 1)):
        return "unlimited"
    return int(word) if word.isdigit() else None


def of_process(host: Host, pid: int) -> tuple[Table, str | None]:
    """Return the limits of a process, or why they cannot be read."""
    path = f"/proc/{pid}/limits"
    content = _read.text(host, path)
    return ({}, _read.why_not(host, path)) if content is None else (read_table(content), None)


def processes(scene: Scene) -> list[dict[str, Any]]:
    """Return the limits in force of each named process."""
    rows = []
    for found in _processes.find(scene.host, scene.options.processes):
        table, reason = ({}, found.reason) if found.pid is None else of_process(scene.host, found.pid)
        row = {"asked": found.asked, "pid": found.pid, "command": found.command, "limits": table or None}
        rows.append({**row, "source": found.pid and f"/proc/{found.pid}/limits", "reason": reason})
    return rows


def services(scene: Scene) -> list[dict[str, Any]]:
    """Return for each named service what systemd would give it and what its main process has."""
    properties = [f"Limit{item.upper()}{end}" for item in _process_limits.ROWS for end in ("", "Soft")]
    rows, reason = _processes.units(scene, properties)
    if reason is not None:
        names = map(_processes.unit, scene.options.services)
        return [_service(name, Missing(reason), Missing(reason)) for name in names]
    return [_described(scene.host, row) for row in rows]


def _described(host: Host, row: dict[str, str]) -> dict[str, Any]:
    name = row["asked"]
    if row.get("LoadState") == "not-found":
        missing = Missing(f"{name}: there is no such unit")
        return _service(name, missing, missing)
    shown = {
        item: {"soft": row.get(f"Limit{item.upper()}Soft"), "hard": row.get(f"Limit{item.upper()}")}
        for item in _process_limits.ROWS
    }
    configured: Table = {
        item: {end: _word(word or "") for end, word in pair.items()} for item, pair in shown.items() if pair["hard"]
    }
    pid = _processes.main_pid(row)
    if pid is None:
        return _service(name, configured, Missing(f"{name}: has no main process now"))
    table, reason = of_process(host, pid)
    return {**_service(name, configured, Missing(reason) if reason else table), "pid": pid}


def _service(name: str, configured: Table | Missing, running: Table | Missing) -> dict[str, Any]:
    stale = None if isinstance(configured, Missing) or isinstance(running, Missing) else differing(configured, running)
    reasons = [one.reason for one in (configured, running) if isinstance(one, Missing)]
    return {
        "service": name,
        "pid": None,
        "configured": None if isinstance(configured, Missing) else configured,
        "running": None if isinstance(running, Missing) else running,
        "differing": stale,
        "restart_needed": None if stale is None else bool(stale),
        "source": "systemctl show, /proc/PID/limits of the main process",
        "reason": reasons[0] if reasons else None,
    }


def differing(configured: Table, running: Table) -> list[str]:
    """Return the items that the running process does not have as configured.

    Many a program raises its own soft limit to the hard one: that is no difference.
    """
    items = []
    for item in sorted(set(configured) & set(running)):
        wanted, has = configured[item], running[item]
        raised = has["soft"] != wanted["soft"] and has["soft"] == has["hard"]
        if has["hard"] != wanted["hard"] or (has["soft"] != wanted["soft"] and not raised):
            items.append(item)
    return items

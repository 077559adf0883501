# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn how the probe is to be started into a command, an environment and the control groups to watch."""

from __future__ import annotations

import json
import os
import pwd
import re
import resource
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._model import Launch
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._processes import TOKEN, ask
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe import _cgroup

SERVICE_LIMITS = {
    "Max open files": resource.RLIMIT_NOFILE,
    "Max processes": resource.RLIMIT_NPROC,
    "Max locked memory": resource.RLIMIT_MEMLOCK,
    "Max stack size": resource.RLIMIT_STACK,
    "Max core file size": resource.RLIMIT_CORE,
    "Max address space": resource.RLIMIT_AS,
}
LINE = re.compile(r"(?P<name>.+?)\s{2,}(?P<soft>\d+|unlimited)\s+(?P<hard>\d+|unlimited)")
Limits = dict[int, tuple[int, int]]
ENTER = """
import json, os, resource, sys
limits, folders = json.loads(sys.argv[1])
for number, pair in limits:
    resource.setrlimit(number, pair)
for folder in folders:
    with open(folder + "/cgroup.procs", "w") as stream:
        stream.write("0")
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class Command:
    """What is handed to the kernel."""

    words: tuple[str, ...]
    environment: dict[str, str]
    owner: tuple[int, int]  # of the probe's files
    watched: tuple[_cgroup.Level, ...]  # the control groups whose refusals can be the reason of an end


def build(launch: Launch, script: Sequence[str], token: str) -> Command:
    """Return the command; it starts in the slice, as the user, below the launcher."""
    user = account(launch.user)
    words = [*_in_slice(launch), *_as_user(user), *launch.launcher, launch.python, *script]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **launch.environment, TOKEN: token}
    if user.pw_uid != os.geteuid():
        environment.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
    for folder in launch.cgroups:
        if not os.access(os.path.join(folder, "cgroup.procs"), os.W_OK):
            raise TuningError(f"{folder}: is not a control group that this user may put a process into")
    limits = service_limits(launch.like_service) if launch.like_service else {}
    words = [*_enter(limits, launch.cgroups), *words]
    return Command(tuple(words), environment, (user.pw_uid, user.pw_gid), _watched(launch))


def _enter(limits: Limits, cgroups: Sequence[str]) -> list[str]:
    """Return what takes the limits and joins the control groups before it becomes the rest of the command."""
    if not limits and not cgroups:
        return []
    return [sys.executable, "-I", "-c", ENTER, json.dumps([list(limits.items()), list(cgroups)])]


def account(name: str) -> pwd.struct_passwd:
    """Return the account that the probe runs as."""
    try:
        return pwd.getpwnam(name) if name else pwd.getpwuid(os.geteuid())
    except KeyError as error:
        raise TuningError(
            f"user: {name or os.geteuid()} is not known on this host; name the user that runs jobs"
        ) from error


def _in_slice(launch: Launch) -> list[str]:
    if not launch.slice:
        return []
    if shutil.which("systemd-run") is None or not os.path.isdir("/run/systemd/system"):
        raise TuningError(
            f"slice: {launch.slice} needs systemd, which does not run here; give control groups by their folders "
            f"instead"
        )
    return ["systemd-run", "--scope", "--quiet", "--collect", f"--slice={launch.slice}", "--"]


def _as_user(user: pwd.struct_passwd) -> list[str]:
    """A session of its own lets PAM give the limits that a login has."""
    if user.pw_uid == os.geteuid():
        return []
    if os.geteuid() != 0:
        raise TuningError(f"user: {user.pw_name} is somebody else, and only root can start the probe as that user")
    if shutil.which("runuser") is None:
        raise TuningError(f"user: runuser is needed to start the probe as {user.pw_name}; install util-linux")
    return ["runuser", "-u", user.pw_name, "--"]


def _watched(launch: Launch) -> tuple[_cgroup.Level, ...]:
    """Return the levels, the deepest first."""
    levels: list[_cgroup.Level] = []
    for folder in launch.cgroups:
        if os.path.exists(os.path.join(folder, "memory.max")):
            levels += _cgroup.above(os.path.normpath(folder), 2)
        elif os.path.exists(os.path.join(folder, "memory.limit_in_bytes")):
            levels += _cgroup.above(os.path.normpath(folder), 1)
    if launch.slice:
        levels += _slice_levels(launch.slice)
    return tuple(dict.fromkeys([*levels, *_cgroup.levels("memory")]))


def _slice_levels(name: str) -> list[_cgroup.Level]:
    """Return where a slice stands: gpu-jobs.slice lies below gpu.slice."""
    parts = name[: -len(".slice")].split("-")
    path = "/".join("-".join(parts[: depth + 1]) + ".slice" for depth in range(len(parts)))
    if os.path.exists(f"{_cgroup.MOUNT}/cgroup.controllers"):
        return _cgroup.above(f"{_cgroup.MOUNT}/{path}", 2)
    return _cgroup.above(f"{_cgroup.MOUNT}/memory/{path}", 1)


def service_limits(service: str) -> Limits:
    """Return the limits of a running service, which are those of the jobs that it starts."""
    pid = (ask(["systemctl", "show", "--value", "-p", "MainPID", service], 10) or "").strip()
    text = _cgroup.text(f"/proc/{pid}/limits") if pid.isdigit() and pid != "0" else None
    if text is None:
        raise TuningError(f"like_service: {service} has no running main process whose limits could be taken")
    return read_limits(text)


def read_limits(text: str) -> Limits:
    """Read the table in /proc/PID/limits."""
    found = {}
    for line in text.splitlines():
        parts = LINE.match(line)
        if parts and parts["name"] in SERVICE_LIMITS:
            soft, hard = (
                resource.RLIM_INFINITY if parts[end] == "unlimited" else int(parts[end]) for end in ("soft", "hard")
            )
            found[SERVICE_LIMITS[parts["name"]]] = (soft, hard)
    return found

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a unit property does beyond its number: refusals, warnings, and the processes that do not have it yet."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils import _cgroup, _process_limits
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _shown
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._properties import INFINITY, PROPERTIES
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, TuningError

# Daemons whose children are jobs or logins.
STARTS_JOBS = frozenset(
    (
        *("atd", "condor", "containerd", "crio", "cron", "crond", "docker", "kubelet", "lsfd", "nomad", "pbs_mom"),
        *("podman", "sge_execd", "slurmd", "ssh", "sshd", "systemd-logind", "user@"),
    )
)
LIMIT = "Limit"


def refuse(unit: str, name: str, value: str) -> None:
    """Refuse what would spare every job from the OOM killer."""
    starts_jobs = unit.partition(".")[0].rstrip("0123456789") in STARTS_JOBS
    if name == "OOMScoreAdjust" and value == "-1000" and starts_jobs:
        raise TuningError(
            f"{unit} OOMScoreAdjust: -1000 would be inherited by every job that it starts; use -900 or higher"
        )


def running(host: Host, setting: Setting, path: str) -> str | None:
    """Return what the process of a service still has from before our file at `path`, where that is another value.

    A process that is younger than the file was started with it: what it has then is its own doing, as with a daemon
    that raises its soft limit, and no restart would change that.
    """
    unit, name = setting.key.split()
    shown = _shown.ask(host, unit) if unit.endswith(".service") else None
    pid = (shown or {}).get("MainPID", "0")
    if pid in ("", "0") or host.younger(pid, path):
        return None
    if name == "OOMScoreAdjust":
        has = (host.glance(f"/proc/{pid}/oom_score_adj") or "").strip() or None
    else:
        has = held(host.glance(f"/proc/{pid}/limits") or "").get(name)
    if has is None or has == setting.value:
        return None
    return f"{unit} (process {pid}) runs with {has} until it is restarted"


def held(text: str) -> dict[str, str]:
    """Return soft:hard by property from the text of /proc/PID/limits."""
    rows = _process_limits.read(text).items()
    return {f"{LIMIT}{item.upper()}": ":".join(pair).replace("unlimited", INFINITY) for item, pair in rows}


def advice(host: Host, settings: Sequence[Setting]) -> list[str]:
    """Return what the operator should know about the values of a call."""
    values = {setting.key: setting.value for setting in settings}
    found = []
    for key, value in values.items():
        unit, name = key.split()
        if name == "MemoryHigh" and value != INFINITY and values.get(f"{unit} MemoryMax", INFINITY) == INFINITY:
            found += _throttle(host, unit)
        if name == "OOMScoreAdjust" and int(value) < 0:
            found.append(f"{key}: is inherited by everything that {unit} starts; the OOM killer spares that too")
        if name == "LimitAS" and not value.endswith(INFINITY):
            found.append(f"{key}: CUDA reserves 17 to 128 GiB of address space untouched; leave it at infinity")
    found += [f"{one.key}: {one.caveat}" for one in settings if one.caveat and one.value != INFINITY]
    return found + _ignored(host, settings)


def _throttle(host: Host, unit: str) -> list[str]:
    swap = [
        line.split()[1] for line in (host.read("/proc/meminfo") or "").splitlines() if line.startswith("SwapTotal:")
    ]
    if swap != ["0"]:
        return []
    return [
        f"{unit} MemoryHigh: without swap and without a MemoryMax above it, a job over it is neither killed nor "
        "running; set MemoryMax too"
    ]


def _ignored(host: Host, settings: Sequence[Setting]) -> list[str]:
    """Name, for each unit, what an old-style host stores and never applies."""
    if not host.live or _cgroup.version(host) != 1:
        return []
    from_v2 = [one.key for one in settings if PROPERTIES[one.key.split()[1]].group]
    dead = [key for key in from_v2 if not PROPERTIES[key.split()[1]].legacy]
    return [f"{', '.join(dead)}: without effect on cgroup v1, so not applied"] if dead else []

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kind `limits`: what pam_limits gives a login, kept by one file of ours per set in limits.d."""

from __future__ import annotations

import re
import resource
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _plain, _values
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Content, FileState, Setting, TuningError

NAME = "limits"
RANK = 30  # after sysctl: a hard nofile above fs.nr_open would lock everybody out
NO_LIVE = "a limit takes effect at a login, so it has no live value of its own"
MISSING = _plain.MISSING
explain = _plain.explain
follows = _plain.follows
made = _plain.made
passing = _plain.passing
resolve = _plain.resolve
running = _plain.running
place = _plain.place
wanted = _plain.wanted

HEADER = "# Written by gpu_fleet.node for the set {}; changes made here are undone by the next run.\n"
DOMAIN = re.compile(r"\*|[@%]?[A-Za-z0-9_][A-Za-z0-9_.-]*\$?|@?\d*:\d*")
WITHOUT_LIMIT = ("unlimited", "infinity", "-1")
# The resource behind an item and what one of its units is; the others do not end a login.
RESOURCES = {
    "nofile": (resource.RLIMIT_NOFILE, 1),
    "nproc": (resource.RLIMIT_NPROC, 1),
    "memlock": (resource.RLIMIT_MEMLOCK, 1024),
    "stack": (resource.RLIMIT_STACK, 1024),
    "core": (resource.RLIMIT_CORE, 1024),
    "data": (resource.RLIMIT_DATA, 1024),
    "as": (resource.RLIMIT_AS, 1024),
    "fsize": (resource.RLIMIT_FSIZE, 1024),
}
# Items whose numbers are levels: -1 is one of them, not a word for no limit.
PRIORITIES = {"nice": (-20, 19), "priority": (-20, 19), "rtprio": (0, 99)}


def declare(set_name: str, options: Sequence[Mapping[str, Any]]) -> tuple[Setting, ...]:
    """Turn the declared options into settings in normal form; a dash is both soft and hard."""
    return tuple(setting for option in options for setting in _declare(set_name, option))


def _declare(set_name: str, option: Mapping[str, Any]) -> list[Setting]:
    domain, item = str(option["domain"]).strip(), option["item"]
    if not DOMAIN.fullmatch(domain):
        raise TuningError(f"limits domain {domain!r}: is neither *, a user, @group, %group nor a range of ids")
    value = normal(f"{domain} {item}", item, _values.clean(f"{domain} {item}", option))
    types = ("soft", "hard") if option["type"] == "-" else (option["type"],)
    return [Setting(set_name, NAME, f"{domain} {kind} {item}", value) for kind in types]


def normal(name: str, item: str, value: str) -> str:
    """Return a limit as a number or `unlimited`, or refuse it."""
    if item in PRIORITIES:
        low, high = PRIORITIES[item]
        if not re.fullmatch(r"-?\d+", value) or not low <= int(value) <= high:
            raise TuningError(f"{name}: {value!r} is not a number from {low} to {high}")
        return str(int(value))
    if value in WITHOUT_LIMIT:
        if item == "nofile":
            raise TuningError(f"{name}: {value} makes logins fail on older PAM, expected a number up to fs.nr_open")
        return "unlimited"
    if not value.isdigit():
        raise TuningError(f"{name}: {value!r} is neither a number nor unlimited")
    return str(int(value))


def check(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Refuse a soft limit above the hard one of the same domain and item."""
    values = {setting.key: setting.value for setting in settings}
    for setting in settings:
        domain, kind, item = setting.key.split()
        hard = values.get(f"{domain} hard {item}")
        if kind == "soft" and hard is not None and item not in PRIORITIES and above(setting.value, hard):
            raise TuningError(f"{domain} {item}: the soft limit {setting.value} is above the hard limit {hard}")
    return tuple(sorted(settings, key=lambda setting: setting.key))


def above(value: str, other: str) -> bool:
    """Tell whether one limit is above another."""
    return other != "unlimited" and (value == "unlimited" or int(value) > int(other))


def live(_host: Host, _place: str) -> str | None:
    """Return nothing: a limit has no live value."""
    return None


def obstacle(host: Host, place: str, state: str) -> str | None:
    """Return why a login here would fail with this limit: pam_limits ends it where root may not raise limits."""
    item = place.rsplit(maxsplit=1)[-1]
    if item not in RESOURCES:
        return None
    limit, unit = RESOURCES[item]
    number = resource.RLIM_INFINITY if state == "unlimited" else int(state) * unit
    if item == "nofile":  # what fs.nr_open will allow is another question, asked of the whole call
        number = min(number, int((host.read("/proc/sys/fs/nr_open") or state).split()[0]))
    now = resource.getrlimit(limit)[1]
    if now == resource.RLIM_INFINITY or 0 <= number <= now or host.allows(limit, number):
        return None
    return f"not even root may have it here (the hard limit is {now // unit}), so every login would fail"


def advice(_host: Host, settings: Sequence[Setting]) -> list[str]:
    """Warn of limits that stop CUDA or forbid debugging."""
    return [text for text in (_warning(setting) for setting in settings) if text is not None]


def _warning(setting: Setting) -> str | None:
    kind, item = setting.key.split()[1:]
    if item == "as" and setting.value != "unlimited":
        return f"{setting.key}: CUDA reserves 17 to 128 GiB of address space untouched; leave it unlimited"
    if (kind, item, setting.value) == ("hard", "core", "0"):
        return f"{setting.key}: a hard limit of 0 forbids a core dump even to who asks for one; set the soft limit to 0"
    return None


def write(_host: Host, place: str, _state: str) -> None:
    """Refuse: a limit has no live value."""
    raise TuningError(f"{place}: {NO_LIVE}")


def files(settings: Sequence[Setting]) -> dict[str, Content]:
    """Return our file: its name sorts after those of all others, since within a domain the last line wins."""
    if not settings:
        return {}
    name = settings[0].set_name
    lines = [HEADER.format(name), *sorted(f"{one.key} {one.value}\n" for one in settings)]
    return {f"/etc/security/limits.d/zz-gpu-fleet-{name}.conf": Content("".join(lines).encode())}


def parse(_path: str, state: FileState) -> dict[str, str]:
    """Return the values that a file of ours holds."""
    rows = (line.split("#")[0].split() for line in state.content.decode("utf-8", "replace").splitlines())
    return {" ".join(row[:3]): row[3] for row in rows if len(row) == 4}


def persistence(host: Host) -> str | None:
    """Return why nothing on this host applies our file at a login, or None."""
    folders = ("/etc/pam.d", "/usr/lib/pam.d")
    services = (f"{folder}/{name}" for folder in folders for name in host.names(folder))
    if any("pam_limits.so" in (host.read(path) or "") for path in services):
        return None
    return "limits.d: is not applied at a login, since no service in /etc/pam.d uses pam_limits"

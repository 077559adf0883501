# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kind `sysctl`: values below /proc/sys, kept by one file of ours per set in sysctl.d."""

from __future__ import annotations

import difflib
import mmap
import re
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _plain, _start, _values
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import (
    Content,
    FileState,
    Rule,
    Setting,
    TuningError,
)

NAME = "sysctl"
NO_LIVE = None
RANK = 20  # after sysfs: a new THP mode makes the kernel compute vm.min_free_kbytes again
MISSING = _plain.MISSING
advice = _plain.advice
follows = _plain.follows
made = _plain.made
passing = _plain.passing
resolve = _plain.resolve
running = _plain.running

HEADER = "# Written by gpu_fleet.node for the set {}; changes made here are undone by the next run.\n"
KEY = re.compile(r"[A-Za-z0-9_@:-]+(?:[./][A-Za-z0-9_@:-]+)+")

# Writing one of a pair makes the other read 0 (mm/page-writeback.c), so both are one atom, named after the first. Its
# state is that of the face in force; least is the smallest number of bytes that the kernel takes.
FACES = {
    "vm.dirty_bytes": ("vm.dirty_ratio", 2 * mmap.PAGESIZE),
    "vm.dirty_background_bytes": ("vm.dirty_background_ratio", 1),
}
BYTES_OF = {ratio: face for face, (ratio, least) in FACES.items()}

WRITE_ONLY = "is write-only, an action and no setting, so it can be neither kept nor taken back"

# Keys that set off an action; there is no value to keep or to give back. Others are recognised by their mode.
ACTIONS = frozenset({"vm.drop_caches", "vm.compact_memory", "net.ipv4.route.flush", "net.ipv6.route.flush"})

# Keys that the kernel does not let down again before a reboot; None: whatever the value.
ONE_WAY: dict[str, str | None] = {
    "kernel.kexec_load_disabled": "1",
    "kernel.modules_disabled": "1",
    "kernel.unprivileged_bpf_disabled": "1",
    "kernel.yama.ptrace_scope": "3",
    "kernel.kexec_load_limit_panic": None,
    "kernel.kexec_load_limit_reboot": None,
}
GONE = {
    re.compile(r"kernel\.sched_(min|wakeup|latency|migration|tunable|nr_migrate)\w*"): "it moved to debugfs in 5.13",
}


def canonical(key: str) -> str:
    """Return a key with dots between components, and slashes for the dots inside one (systemd's reading of both)."""
    key = key.strip()
    if not KEY.fullmatch(key):
        raise TuningError(f"sysctl key {key!r}: is not of the form vm.swappiness or net/ipv4/conf/eth0.1/rp_filter")
    first = next(mark for mark in key if mark in "./")
    return key if first == "." else key.translate(str.maketrans("./", "/."))


def location(key: str) -> str:
    """Return the file of a key in normal form."""
    return "/proc/sys/" + key.translate(str.maketrans("./", "/."))


def declare(set_name: str, options: Sequence[Mapping[str, Any]]) -> tuple[Setting, ...]:
    """Turn the declared options into settings in normal form, or refuse them."""
    return tuple(_declare(set_name, option) for option in options)


def _declare(set_name: str, option: Mapping[str, Any]) -> Setting:
    key = canonical(option["key"])
    value = _values.clean(key, option)
    rule: Rule = option.get("rule") or "exact"
    one_way = key in ONE_WAY and ONE_WAY[key] in (None, value)
    if key in ACTIONS:
        raise TuningError(f"{key}: {WRITE_ONLY}")
    if one_way and not option.get("one_way"):
        raise TuningError(f"{key}: only a reboot takes {value} back; set one_way: true on it to agree to that")
    if rule == "at_least":
        value = " ".join(map(str, _values.numbers(key, value)))  # the boot readers take no other spelling, and 010 as 8
        if key in FACES or key in BYTES_OF:
            raise TuningError(f"{key}: cannot be a floor, since it and {_twin(key)} are two faces of one setting")
    if key in FACES and value.isdigit() and 0 < int(value) < FACES[key][1]:
        raise TuningError(f"{key}: {value} is less than the kernel takes, expected at least {FACES[key][1]} bytes")
    return Setting(set_name, NAME, key, value, rule, one_way)


def _twin(key: str) -> str:
    return FACES[key][0] if key in FACES else BYTES_OF[key]


def check(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Refuse two faces of one setting, unless one only says the 0 that the other implies."""
    by_key = {setting.key: setting for setting in settings}
    kept = []
    for setting in sorted(settings, key=lambda setting: setting.key):
        paired = setting.key in FACES or setting.key in BYTES_OF
        twin = by_key.get(_twin(setting.key)) if paired else None
        if paired and setting.value == "0" and twin is not None and twin.value != "0":
            continue
        if setting.key in FACES and setting.value == "0":
            raise TuningError(f"{setting.key}: the kernel refuses 0; declare {_twin(setting.key)} instead")
        if twin is not None and twin.value != "0":
            raise TuningError(
                f"{setting.key} = {setting.value} and {twin.key} = {twin.value}: are two faces of one setting, and "
                f"one is always 0; declare one of them"
            )
        kept.append(setting)
    return tuple(kept)


def place(setting: Setting) -> str:
    """Return the key of the one live atom that the setting governs."""
    return BYTES_OF.get(setting.key, setting.key)


def wanted(setting: Setting) -> str:
    """Return the state of that atom that makes the setting true."""
    return f"{setting.key}={setting.value}" if setting.key in BYTES_OF else setting.value


def live(host: Host, key: str) -> str | None:
    """Return the value in force; of two faces, the one in force (`vm.dirty_ratio=20`)."""
    path = location(key)
    mode = host.mode(path)
    if mode is not None and not stat.S_IMODE(mode) & 0o444:
        raise TuningError(f"{key}: {WRITE_ONLY}")
    text = host.attribute(path)
    if text is None:
        return None
    value = _values.one_line(text)
    if key in FACES and value == "0":
        ratio = FACES[key][0]
        return f"{ratio}={_values.one_line(host.read(location(ratio)) or '0')}"
    return value


def obstacle(host: Host, key: str, _state: str) -> str | None:
    """Return why the key cannot be written on this host, or None."""
    return host.obstacle(location(key))


def explain(host: Host, setting: Setting) -> str | None:
    """Return the nearest key that this kernel does know."""
    if host.mode(location(setting.key)) is not None:
        return None
    for pattern, reason in GONE.items():
        if pattern.fullmatch(setting.key):
            return reason
    folder, name = location(setting.key).rsplit("/", 1)
    near = [f"{folder}/{found}" for found in difflib.get_close_matches(name, host.names(folder), 1, 0.8)]
    if not near and host.mode(folder) is None:
        top = difflib.get_close_matches(setting.key.split(".")[0], host.names("/proc/sys"), 1, 0.4)
        near = [path for path in (f"/proc/sys/{part}/{name}" for part in top) if host.mode(path) is not None]
    return f"did you mean {canonical(near[0][len('/proc/sys/') :])}?" if near else None


def write(host: Host, key: str, state: str) -> None:
    """Give the key, or the face that the state names, its value."""
    face, equals, value = state.partition("=")
    if equals and face in BYTES_OF:
        host.poke(location(face), value)
    else:
        host.poke(location(key), state)


def files(settings: Sequence[Setting]) -> dict[str, Content]:
    """Return our file: its name sorts after those of all others, since the last base name wins."""
    if not settings:
        return {}
    name = settings[0].set_name
    lines = [HEADER.format(name), *sorted(f"{one.key} = {one.value}\n" for one in settings)]
    return {f"/etc/sysctl.d/zz-gpu-fleet-{name}.conf": Content("".join(lines).encode())}


def parse(_path: str, state: FileState) -> dict[str, str]:
    """Return the values that a file of ours holds."""
    lines = state.content.decode("utf-8", "replace").splitlines()
    pairs = (line.partition("=") for line in lines if line[:1] not in "#;")
    return {key.strip(): _values.one_line(value) for key, equals, value in pairs if equals}


def persistence(host: Host) -> str | None:
    """Return why nothing on this host applies our file at boot, or None."""
    if _start.systemd(host) or _start.sysctl_service(host):
        return None
    return "sysctl.d: is not applied at boot, since neither systemd nor a sysctl service starts this host"

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What TuneD's active profile sets, if TuneD runs or will run on this host."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._values import one_line
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Rule, Setting, Writer
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers import _shell
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers._sysctl_files import Line, normal, value_for

PROFILES_IN = ("/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned")
THP = "/sys/kernel/mm/transparent_hugepage"
VM = {
    "transparent_hugepages": f"{THP}/enabled",
    "transparent_hugepage": f"{THP}/enabled",
    "transparent_hugepage.defrag": f"{THP}/defrag",
    "dirty_ratio": "vm.dirty_ratio",
    "dirty_bytes": "vm.dirty_bytes",
    "dirty_background_ratio": "vm.dirty_background_ratio",
    "dirty_background_bytes": "vm.dirty_background_bytes",
}


@dataclass
class Profile:
    """The options of a profile after its includes, by section and name, with the file that each comes from."""

    types: dict[str, str] = field(default_factory=dict)
    options: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Tuned:
    """What is active, if anything is."""

    profile: Profile
    reapplies: bool  # after its own keys, TuneD applies sysctl.d again


def read(host: Host) -> Tuned | None:
    """Return the active profile, or None where TuneD is absent, masked, or neither enabled nor running."""
    if not _active(host):
        return None
    names = (host.read("/etc/tuned/active_profile") or "").split()
    names += (host.read("/etc/tuned/post_loaded_profile") or "").split()
    profile = Profile()
    for name in names:
        _load(host, name, profile, ())
    main = host.read("/etc/tuned/tuned-main.conf") or ""
    off = re.search(r"^\s*reapply_sysctl\s*=\s*(0|false|no)\b", main, re.MULTILINE | re.IGNORECASE)
    return Tuned(profile, off is None)


def _active(host: Host) -> bool:
    if host.target("/etc/systemd/system/tuned.service") == "/dev/null":
        return False
    pid = (host.read("/run/tuned/tuned.pid") or "").strip()
    if host.live and pid.isdigit() and host.mode(f"/proc/{pid}") is not None:
        return True
    wanted = (name for name in host.names("/etc/systemd/system") if name.endswith((".wants", ".requires")))
    return any("tuned.service" in host.names(f"/etc/systemd/system/{name}") for name in wanted)


def _load(host: Host, name: str, profile: Profile, above: tuple[str, ...]) -> None:
    """Lay a profile over what is there, its includes first."""
    found = ((f"{folder}/{name}/tuned.conf", host.read(f"{folder}/{name}/tuned.conf")) for folder in PROFILES_IN)
    path, text = next(((path, text) for path, text in found if text is not None), ("", ""))
    rows = list(_rows(text or ""))
    for section, option, value in rows:
        if (section, option) == ("main", "include"):
            for other in re.split(r"[\s,;]+", value):
                if other.lstrip("-") and other.lstrip("-") not in (*above, name):
                    _load(host, other.lstrip("-"), profile, (*above, name))
    for section, option, value in rows:
        if option == "type":
            profile.types[section] = value
        elif option == "replace" and value.lower() in ("1", "true"):
            profile.options = {key: row for key, row in profile.options.items() if key[0] != section}
        profile.options[(section, option)] = (value, name, path)


def _rows(text: str) -> Iterator[tuple[str, str, str]]:
    section = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        else:
            name, equals, value = line.partition("=")
            if equals:
                yield section, name.strip(), value.strip()


def writers(host: Host, setting: Setting, tuned: Tuned) -> Iterator[Writer]:
    """Yield what the active profile gives the setting."""
    for (section, option), (raw, name, path) in tuned.profile.options.items():
        plugin = tuned.profile.types.get(section, section)
        source = f"TuneD profile {name} ({path})"
        applies = _applies(host, section, tuned.profile)
        if applies is False:
            continue
        if plugin == "script" and option == "script":
            yield from _scripted(host, setting, raw, source, path)
            continue
        rule, value = _value(raw, tuned.profile) if applies else ("exact", None)
        given = _given(setting, plugin, option, value)
        if given is not None:
            ours_comes_back = setting.kind == "sysctl" and plugin == "sysctl" and tuned.reapplies
            text = None if value is None else given
            yield Writer(setting.kind, setting.key, text, source, "manager", rule=rule, reapplies=not ours_comes_back)


def _applies(host: Host, section: str, profile: Profile) -> bool | None:
    """Tell whether a section is for this machine; None where that cannot be known, as in an image."""
    conditions = {"cpuinfo_regex": _cpuinfo, "uname_regex": _uname}
    for option, read in conditions.items():
        if (section, option) not in profile.options:
            continue
        text = read(host) if host.live else None
        if text is None:
            return None
        try:
            pattern = _expanded(profile.options[(section, option)][0], profile)
            if "${" in pattern:
                return None
            if re.search(pattern, text, re.MULTILINE) is None:
                return False
        except re.error:
            return None
    return True


def _cpuinfo(host: Host) -> str | None:
    return host.read("/proc/cpuinfo")


def _uname(host: Host) -> str | None:
    """Return what TuneD compares: the fields of uname with blanks between them; the kernel tells its arch since 6.1."""
    names = ("ostype", "hostname", "osrelease", "version", "arch")
    fields = [(host.read(f"/proc/sys/kernel/{name}") or "").strip() for name in names]
    fields[-1] = fields[-1] or os.uname().machine
    return " ".join(fields)


def _given(setting: Setting, plugin: str, option: str, value: str | None) -> str | None:
    """Return what an option gives the setting (an unknown value stands as a question mark), or None."""
    target = normal(option) if plugin == "sysctl" else VM.get(option, "") if plugin == "vm" else option
    if setting.kind == "sysctl" and plugin in ("sysctl", "vm"):
        return value_for(setting, Line(0, target, "?" if value is None else value))
    if setting.kind == "sysfs" and plugin in ("sysfs", "vm"):
        pattern = re.escape(target).replace(r"\*", "[^/]*")
        return ("?" if value is None else value) if re.fullmatch(pattern, setting.key) else None
    return None


def _value(raw: str, profile: Profile) -> tuple[Rule, str | None]:
    """Return the rule and value of an option: `>` only raises; a function of TuneD is not understood."""
    text = raw.strip("\"'")
    rule: Rule = "at_least" if text.startswith(">") else "exact"
    text = _expanded(text.lstrip(">"), profile)
    return rule, None if "${" in text or text.startswith("<") else one_line(text)


def _expanded(text: str, profile: Profile) -> str:
    """Return the text with the variables of the profile in it; one that it lacks stays as it is."""
    for name in re.findall(r"\$\{([\w.]+)\}", text):
        text = text.replace(f"${{{name}}}", profile.options.get(("variables", name), ("${", "", ""))[0])
    return text


def _scripted(host: Host, setting: Setting, raw: str, source: str, path: str) -> Iterator[Writer]:
    folder = path.rsplit("/", 1)[0]
    for script in re.split(r"[\s,;]+", raw.replace("${i:PROFILE_DIR}", folder)):
        place = script if script.startswith("/") else f"{folder}/{script}"
        found = _shell.last(setting, host.read(place) or "", host.read)
        if found is not None:
            yield Writer(setting.kind, setting.key, found[1], f"{source}, its script {place}:{found[0]}", "manager")

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who writes a setting late in the boot: enabled units, rc.local and cron's @reboot lines."""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._sysctl import location
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, Writer
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers import _shell

WANTED_IN = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
UNITS_IN = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
RC_LOCAL = ("/etc/rc.local", "/etc/rc.d/rc.local")
SHELLS = ("sh", "bash", "dash")
OWN = ("tuned.service", "systemd-sysctl.service")  # the first is read by a reader of its own, the second is sysctl.d


@dataclass(frozen=True)
class Script:
    """Some shell that runs at boot, and what to call it."""

    text: str
    name: str
    numbered: bool = True  # its line numbers mean something to the operator


def read(host: Host) -> list[Script]:
    """Return everything that runs at boot and can be read as shell."""
    found = [script for unit in enabled(host) for script in _of_unit(host, unit)]
    for path in RC_LOCAL:
        mode = host.mode(path)
        if mode is not None and stat.S_ISREG(mode) and mode & 0o111:
            found.append(Script(host.read(path) or "", path))
    return found + list(_cron(host))


def enabled(host: Host) -> list[str]:
    """Return the services that a target or another unit pulls in at boot, timers by the service that they start."""
    names = set()
    for folder in WANTED_IN:
        for name in host.names(folder):
            if name.endswith((".wants", ".requires", ".upholds")):
                names.update(host.names(f"{folder}/{name}"))
    services = {re.sub(r"\.timer$", ".service", name) for name in names}
    return sorted(name for name in services if name.endswith(".service") and name not in OWN)


def _of_unit(host: Host, unit: str) -> Iterator[Script]:
    texts = _texts(host, unit)
    commands: dict[str, list[str]] = {}
    for raw in re.sub(r"\\\n", " ", "\n".join(texts)).splitlines():
        name, equals, value = (part.strip() for part in raw.partition("="))
        if equals and re.fullmatch(r"Exec(?:Start|StartPre|StartPost|Condition)", name):
            commands[name] = [*commands.get(name, []), value] if value else []
    for lines in commands.values():
        for line in lines:
            yield from _of_command(host, line, unit)


def _texts(host: Host, unit: str) -> list[str]:
    """Return the unit file in force and its drop-ins; nothing for a masked unit."""
    template = re.sub(r"@.*\.service$", "@.service", unit)
    for name in dict.fromkeys((unit, template)):
        for folder in UNITS_IN:
            path = f"{folder}/systemd/system/{name}"
            if host.mode(path) is None:
                continue
            if host.target(path) == "/dev/null":
                return []
            base = host.read(path) or ""
            drops = (f"{place}/systemd/system/{name}.d" for place in reversed(UNITS_IN))
            return [base, *(host.read(f"{drop}/{one}") or "" for drop in drops for one in host.names(drop))]
    return []


def _of_command(host: Host, line: str, unit: str) -> Iterator[Script]:
    line = line.lstrip("-@:+!|").replace("%%", "%").replace("$$", "$")
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    if not words:
        return
    name = f"the enabled unit {unit}"
    shell = words[0].rsplit("/", 1)[-1] in SHELLS
    flag = next((at for at, word in enumerate(words) if re.fullmatch(r"-\w*c", word)), None)
    if shell and flag is not None and len(words) > flag + 1:
        yield Script(words[flag + 1], name, numbered=False)
        return
    yield Script(line, name, numbered=False)
    script = next((word for word in (words[1:] if shell else words[:1]) if word.startswith("/")), None)
    text = _script(host, script) if script else None
    if text:
        yield Script(text, f"{name} ({script})", numbered=False)


def _script(host: Host, path: str) -> str | None:
    """Return the text of a script; a compiled program is none."""
    text = host.read(path)
    return text if text is not None and text.startswith("#!") and len(text) < 1 << 18 else None


def _cron(host: Host) -> Iterator[Script]:
    places = ["/etc/crontab"]
    for folder in ("/etc/cron.d", "/var/spool/cron", "/var/spool/cron/crontabs"):
        places += [f"{folder}/{name}" for name in host.names(folder)]
    for path in places:
        text = host.read(path) or ""
        if "@reboot" in text:
            lines = (line if line.lstrip().startswith("@reboot") else "" for line in text.splitlines())
            yield Script("\n".join(lines), path)


def writers(host: Host, setting: Setting, scripts: list[Script]) -> Iterator[Writer]:
    """Yield each script that writes the setting, with the last value that it writes."""
    path = location(setting.key) if setting.kind == "sysctl" else setting.key
    folder = path.rsplit("/", 1)[0]
    for script in scripts:
        if folder not in script.text and "sysctl" not in script.text:
            continue
        found = _shell.last(setting, script.text, host.read)
        if found is not None:
            source = f"{script.name}:{found[0]}" if script.numbered else script.name
            yield Writer(setting.kind, setting.key, found[1], source, "late")

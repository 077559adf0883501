# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kind `units`: properties of systemd units and the manager's defaults, kept by one drop-in of ours per unit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _cgroup, _manager
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import (
    _amounts,
    _cpusets,
    _effects,
    _plain,
    _properties,
    _shown,
    _start,
    _values,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Content, FileState, Setting, TuningError

NAME = "units"
RANK = 40  # after limits: a service that is started again must find fs.nr_open raised
NO_LIVE = None
MISSING = "not known to systemd here"
resolve = _amounts.resolve
advice = _effects.advice
place = _plain.place
wanted = _plain.wanted

HEADER = "# Written by gpu_fleet.node for the set {}; changes made here are undone by the next run.\n"
UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]+\.(slice|service|scope)|manager")
RUNTIME = "/run/systemd/system.control"


def declare(set_name: str, options: Sequence[Mapping[str, Any]]) -> tuple[Setting, ...]:
    """Turn the declared options into settings in normal form, or refuse them."""
    return tuple(_declare(set_name, option) for option in options)


def _declare(set_name: str, option: Mapping[str, Any]) -> Setting:
    unit, name = str(option["unit"]).strip(), str(option["property"])
    found = UNIT.fullmatch(unit)
    if not found or "--" in unit or unit.startswith("-"):
        raise TuningError(f"unit {unit!r}: is neither the name of a slice, service or scope nor manager")
    known = _properties.PROPERTIES[name]
    kind = found[1] or unit
    if kind not in known.units:
        raise TuningError(f"{unit} {name}: is a property of a {' or '.join(known.units)}, not of a {kind}")
    value = known.form(f"{unit} {name}", _values.clean(f"{unit} {name}", option))
    _effects.refuse(unit, name, value)
    restart, caveat = bool(option.get("restart")), option.get("caveat")
    return Setting(set_name, NAME, f"{unit} {name}", value, restart=restart, caveat=caveat)


def check(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Refuse a throttle above the hard limit, which never acts."""
    values = {setting.key: setting.value for setting in settings}
    for setting in settings:
        unit, name = setting.key.split()
        most = values.get(f"{unit} MemoryMax", "")
        if name == "MemoryHigh" and setting.value.isdigit() and most.isdigit() and int(setting.value) > int(most):
            raise TuningError(f"{unit}: MemoryHigh {setting.value} is above MemoryMax {most}, so it would never act")
    return tuple(sorted(settings, key=lambda setting: setting.key))


def live(host: Host, place: str) -> str | None:
    """Return what the manager says; where the kernel holds another value for a running group, the kernel's."""
    unit, name = place.split()
    known = _properties.PROPERTIES[name]
    shown = _shown.ask(host, unit)
    if shown is None or (unit != _manager.MANAGER and shown.get("LoadState") != "loaded"):
        return None
    value = _shown.normal(known, shown)
    if value is not None and _manager.shared(unit) and _shown.stale(host, unit, known, value):
        return f"{value} once reloaded"
    text = _kernel(host, known, shown.get("ControlGroup", ""))
    if value is None or text is None:
        return value
    if name in _cpusets.LISTS:
        return _cpusets.held(host, name, value, text)
    # A word such as idle stands for more than one file of the kernel, so only numbers are compared.
    comparable = value.isdigit() or value == _properties.INFINITY
    return (_shown.kernel(text) if comparable else None) or value


def _kernel(host: Host, known: _properties.Property, group: str) -> str | None:
    """Return the text that the kernel has for a running control group; None where it has no such file."""
    found = _cgroup.folder(host, known.kernel[0]) if group not in ("", "/") and known.kernel[0] else None
    file = known.kernel[1 if found[0] == 2 else 2] if found else ""
    return host.glance(f"{found[1]}{group}/{file}") if found and file else None


def follows(place: str) -> bool:
    """Tell whether the manager takes the value from our file when it reads it, and has no other way."""
    unit, name = place.split()
    return _manager.shared(unit) or not _properties.PROPERTIES[name].group


def made(host: Host, place: str) -> tuple[str, ...]:
    """Return the file, and its folder, that setting the property will leave until the next boot."""
    unit, name = place.split()
    path = f"{RUNTIME}/{unit}.d/50-{name}.conf"
    return () if follows(place) or host.mode(path) is not None else (path, *host.missing_folders(path))


def passing(host: Host, place: str, state: str) -> tuple[str, ...]:
    """Return the list of CPUs or nodes that comes between the one that is held and none."""
    return _cpusets.passing(host, place.split()[1], state)


def obstacle(host: Host, place: str, _state: str) -> str | None:
    """Return why the property has no effect on this host, or None."""
    known = _properties.PROPERTIES[place.split()[1]]
    controller = known.kernel[0] or "memory"
    version = _cgroup.version(host, controller)
    if known.group and not known.legacy and version == 1:
        return "it has no effect on cgroup v1: systemd takes it and the kernel never sees it"
    if known.kernel[0] and version is None:
        return f"it has no effect here, since no cgroup hierarchy has the {controller} controller"
    return None


def explain(host: Host, setting: Setting) -> str | None:
    """Say why systemd has no such value, or refuse one that the kernel would not take."""
    _cpusets.refuse(host, setting)
    unit, name = setting.key.split()
    shown = _shown.ask(host, unit)
    if shown is None:
        return "no systemd manager answers"
    if unit != _manager.MANAGER and shown.get("LoadState") != "loaded":
        return f"{unit} is {shown.get('LoadState', 'not-found')}"
    return None if _shown.normal(_properties.PROPERTIES[name], shown) is not None else f"it has no property {name}"


def running(host: Host, setting: Setting) -> str | None:
    """Return what the process of a service still has from before our drop-in, or None."""
    return _effects.running(host, setting, _path(setting.key.split()[0], setting.set_name))


def write(host: Host, place: str, state: str) -> None:
    """Set the property of a running manager, or let it read our files where that is the only way."""
    unit, name = place.split()
    if not follows(place):
        for text in (*passing(host, place, state), state):
            _manager.set_property(host, unit, _shown.assignment(_properties.PROPERTIES[name], text))
    elif live(host, place) != state:
        _manager.reload(host)


def files(settings: Sequence[Setting]) -> dict[str, Content]:
    """Return our drop-ins; their names sort after those of all others, and the more specific one after the other."""
    found: dict[str, list[Setting]] = {}
    for setting in settings:
        found.setdefault(setting.key.split()[0], []).append(setting)
    return {_path(unit, rows[0].set_name): _content(unit, rows) for unit, rows in found.items()}


def _path(unit: str, set_name: str) -> str:
    if unit == _manager.MANAGER:
        return f"/etc/systemd/system.conf.d/zz-gpu-fleet-{set_name}.conf"
    # A drop-in hides the one of the same name for a shorter prefix, so each level has a name of its own.
    level = unit.rpartition(".")[0].count("-") + (0 if _manager.shared(unit) else 1)
    return f"/etc/systemd/system/{unit}.d/zz-gpu-fleet-{set_name}-{level:02}.conf"


def _content(unit: str, settings: Sequence[Setting]) -> Content:
    section = "Manager" if unit == _manager.MANAGER else unit.rpartition(".")[2].capitalize()
    lines = sorted(f"{setting.key.split()[1]}={setting.value}\n" for setting in settings)
    return Content("".join([HEADER.format(settings[0].set_name), f"[{section}]\n", *lines]).encode())


def parse(path: str, state: FileState) -> dict[str, str]:
    """Return the values that a file of ours holds."""
    folder = path.split("/")[-2]
    unit = _manager.MANAGER if folder == "system.conf.d" else folder[: -len(".d")]
    rows = (line.split("=", 1) for line in state.content.decode("utf-8", "replace").splitlines() if "=" in line)
    return {f"{unit} {row[0]}": row[1] for row in rows}


def persistence(host: Host) -> str | None:
    """Return why nothing on this host reads our drop-ins, or None."""
    return None if _start.systemd(host) else "systemd: does not start this host, so no drop-in is read"

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A systemd manager on a temporary tree: it keeps what it has loaded until it is told to read its files again."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology

FOLDERS = ("run/systemd/system.control", "etc/systemd/system", "usr/lib/systemd/system")
COMMON = {
    "MemoryMax": "infinity",
    "MemoryHigh": "infinity",
    "MemoryLow": "0",
    "MemorySwapMax": "infinity",
    "TasksMax": "infinity",
    "CPUWeight": "[not set]",
    "CPUQuota": "infinity",
    "AllowedCPUs": "",
    "AllowedMemoryNodes": "",
    "ManagedOOMSwap": "auto",
    "ManagedOOMMemoryPressure": "auto",
    "ManagedOOMMemoryPressureLimit": "0%",
}
LIMITED = ("NOFILE", "NPROC", "RTPRIO", "MEMLOCK", "STACK", "CORE", "AS", "DATA", "FSIZE")
LIMITS = dict.fromkeys(LIMITED, "infinity:infinity")
LIMITS.update(NOFILE="1024:524288", MEMLOCK="8388608:8388608", RTPRIO="0:0")
DEFAULTS = {
    "slice": COMMON,
    "service": {**COMMON, "TasksMax": "4915", "OOMPolicy": "stop", "OOMScoreAdjust": "0"},
    "manager": {"DefaultTasksMax": "4915"},
}
DEFAULTS["service"].update({f"Limit{name}": value for name, value in LIMITS.items()})
DEFAULTS["manager"].update({f"DefaultLimit{name}": value for name, value in LIMITS.items()})


CPUSETS = {
    "AllowedCPUs": ("cpuset.cpus", "sys/devices/system/cpu/possible"),
    "AllowedMemoryNodes": ("cpuset.mems", "sys/devices/system/node/possible"),
}


class Manager:
    """Answers systemctl; what it has in mind lies in a file, so that it outlives a run that is killed."""

    def __init__(self, root: Path, pids: dict[str, str] | None = None) -> None:
        """Manage the tree at `root`; `pids` holds the main process of each service that runs."""
        self.root, self.pids, self.groups = root, pids or {}, dict[str, str]()
        running = root / "run/systemd/groups.json"
        if running.exists():  # units with processes in them, and their control groups
            self.groups.update(json.loads(running.read_text()))
        self.reloads, self.calls = 0, [""]
        self.mind = root / "run/systemd/mind.json"

    def __call__(self, words: Sequence[str]) -> tuple[int, str]:
        """Do what systemctl does."""
        self.calls.append(" ".join(words))
        verb, rest = words[1], [word for word in words[2:] if not word.startswith("--")]
        if verb == "show" and "*" in words[-1]:
            loaded = [unit for unit in self._thoughts() if fnmatch.fnmatch(unit, words[-1])]
            return 0, "\n".join(self.show(unit) for unit in loaded)
        if verb == "show":
            return 0, self.show(rest[0] if rest else "manager")
        if verb == "set-property":
            return self.set_property(*rest)
        if verb == "daemon-reload":
            self.reloads += 1
            self._think({unit: self.read(unit) for unit in self._thoughts()})
            return 0, ""
        if verb == "try-restart":
            return 0, ""
        return 1, f"Unknown command verb {verb}."

    def show(self, unit: str) -> str:
        """Print all properties of a unit as systemctl spells them."""
        kind = unit.rpartition(".")[2]
        known = self._thoughts()
        if unit not in known and "specimen" not in unit:
            known[unit] = self.read(unit)
            self._think(known)
        values = {**DEFAULTS[kind], **known.get(unit, self.read(unit))}
        lines = [line for name, value in values.items() for line in shown(name, value)]
        if kind != "manager":
            stale = unit in known and known[unit] != self.read(unit)
            lines += [f"NeedDaemonReload={'yes' if stale else 'no'}"]
            lines += [
                f"LoadState={'loaded' if self.exists(unit) else 'not-found'}",
                f"ControlGroup={self.groups.get(unit, '')}",
            ]
            lines += ["Slice=system.slice"] if kind == "service" else []
            lines += [f"MainPID={self.pids.get(unit, '0')}"]
        return "\n".join(lines) + "\n"

    def exists(self, unit: str) -> bool:
        """Tell whether the manager has such a unit."""
        return unit.endswith(".slice") or any((self.root / folder / unit).exists() for folder in FOLDERS)

    def read(self, unit: str) -> dict[str, str]:
        """Return what the files say of a unit, the drop-ins in the order of their names."""
        stem, _dot, suffix = unit.rpartition(".")
        words = stem.split("-")
        names = [unit, *(f"{'-'.join(words[:n])}-.{suffix}" for n in range(len(words) - 1, 0, -1))]
        folders = [f"{folder}/{name}.d" for name in names for folder in FOLDERS]
        found: dict[str, Path] = {}
        for folder in ["etc/systemd/system.conf.d"] if unit == "manager" else folders:
            for place in sorted((self.root / folder).glob("*.conf")):
                found.setdefault(place.name, place)
        fragments = [self.root / folder / unit for folder in FOLDERS if (self.root / folder / unit).is_file()]
        values: dict[str, str] = {}
        for place in [*fragments[:1], *(found[name] for name in sorted(found))]:
            for line in place.read_text().splitlines():
                name, equals, value = line.partition("=")
                if equals and name in DEFAULTS[suffix or unit]:
                    pair = f"{value}:{value}" if "Limit" in name[:12] and ":" not in value else value
                    values[name] = pair or DEFAULTS[suffix or unit][name]
        return {name: value for name, value in values.items() if value != DEFAULTS[suffix or unit][name]}

    def set_property(self, unit: str, assignment: str) -> tuple[int, str]:
        """Change the loaded value, and leave the file that lasts until the next boot."""
        name, _equals, value = assignment.partition("=")
        place = self.root / f"run/systemd/system.control/{unit}.d/50-{name}.conf"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"[Slice]\n{assignment}\n")
        known = self._thoughts()
        known[unit] = {**known.get(unit, self.read(unit)), name: value or DEFAULTS["slice"][name]}
        self._think(known)
        if name in CPUSETS and unit in self.groups:
            self._cpuset(self.root / f"sys/fs/cgroup{self.groups[unit]}/{CPUSETS[name][0]}", name, value)
        return 0, ""

    def _cpuset(self, place: Path, name: str, value: str) -> None:
        """Hand a list to the kernel, which keeps its own where processes run and it is empty or beyond the machine."""
        numbers = self.root / CPUSETS[name][1]
        possible = numbers.read_text() if numbers.exists() else "0"  # a kernel without NUMA
        if value and set(_topology.parse_cpus(value)) <= set(_topology.parse_cpus(possible)):
            place.write_text(value.replace(" ", ",") + "\n")

    def beyond_files(self) -> bytes:
        """Return what the manager has in mind that its files do not say."""
        found = {unit: values for unit, values in self._thoughts().items() if values != self.read(unit)}
        return json.dumps(found, sort_keys=True).encode()

    def _thoughts(self) -> dict[str, dict[str, str]]:
        return dict(json.loads(self.mind.read_text())) if self.mind.exists() else {}

    def _think(self, known: dict[str, dict[str, str]]) -> None:
        """Keep what differs from the defaults of units that have files or were asked about."""
        kept = {}
        for unit, values in known.items():
            defaults = DEFAULTS[unit.rpartition(".")[2]]
            kept[unit] = {name: value for name, value in values.items() if value != defaults[name]}
        self.mind.write_text(json.dumps(kept, sort_keys=True))


def shown(name: str, value: str) -> list[str]:
    """Spell a property the way systemctl show does."""
    if "Limit" in name[:12]:
        soft, _colon, hard = value.partition(":")
        return [f"{name}={hard}", f"{name}Soft={soft}"]
    if name == "CPUQuota":
        return [f"CPUQuotaPerSecUSec={value if value == 'infinity' else f'{int(value[:-1]) / 100:g}s'}"]
    if name == "ManagedOOMMemoryPressureLimit":
        return [f"{name}={round(float(value[:-1]) * (2**32 - 1) / 100)}"]
    return [f"{name}={value}"]

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds of settings, by the option of a set that declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _files, _limits, _sysctl, _sysfs, _units
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import (
    Atom,
    Content,
    FileState,
    Setting,
    TuningError,
)


class Kind(Protocol):
    """What the engine asks of a kind; each is a module of functions, pure but for the three that take a host."""

    NAME: str
    RANK: int  # kinds are applied in ascending and taken back in descending order
    NO_LIVE: str | None  # why settings of this kind have no live view, or None
    MISSING: str  # what it means that a setting has no live value here

    def declare(self, set_name: str, options: Sequence[Mapping[str, Any]]) -> tuple[Setting, ...]:
        """Turn the declared options into settings in normal form, or refuse them."""

    def resolve(self, host: Host, setting: Setting, settings: Sequence[Setting]) -> Setting:
        """Return the setting with what its value is on this host, where that depends on it."""

    def check(self, settings: Sequence[Setting]) -> tuple[Setting, ...]:
        """Refuse settings that contradict each other and drop those that another one implies."""

    def place(self, setting: Setting) -> str:
        """Return the key of the one live atom that the setting governs."""

    def wanted(self, setting: Setting) -> str:
        """Return the state of that atom that makes an exact setting true."""

    def live(self, host: Host, place: str) -> str | None:
        """Return the state of a live atom, or None where the host has no such thing."""

    def follows(self, place: str) -> bool:
        """Tell whether the live atom takes its state from our file, when its manager reads that."""

    def passing(self, host: Host, place: str, state: str) -> tuple[str, ...]:
        """Return the states that the live atom goes through before it has this one."""

    def made(self, host: Host, place: str) -> tuple[str, ...]:
        """Return what writing the live atom would leave on the host besides, the deepest first."""

    def obstacle(self, host: Host, place: str, state: str) -> str | None:
        """Return why the atom cannot be given this state on this host, or None."""

    def explain(self, host: Host, setting: Setting) -> str | None:
        """Refuse a value that this host cannot take, or return a hint about a key that it does not know."""

    def running(self, host: Host, setting: Setting) -> str | None:
        """Return what runs with another value until it is restarted, or None."""

    def advice(self, host: Host, settings: Sequence[Setting]) -> list[str]:
        """Return what the operator should know about the values that a call declares."""

    def write(self, host: Host, place: str, state: str) -> None:
        """Give the live atom this state."""

    def files(self, settings: Sequence[Setting]) -> dict[str, Content]:
        """Return our files, by path, that make these settings of one set survive a reboot."""

    def parse(self, path: str, state: FileState) -> dict[str, str]:
        """Return the values, by setting key, that a file of ours holds."""

    def persistence(self, host: Host) -> str | None:
        """Return why nothing on this host applies our files at boot, or None."""


KINDS: dict[str, Kind] = {kind.NAME: kind for kind in (_sysfs, _sysctl, _files, _limits, _units)}


def declare(set_name: str, options: Mapping[str, Any]) -> tuple[Setting, ...]:
    """Return the settings that one set declares, over all kinds."""
    found: list[Setting] = []
    for name, kind in KINDS.items():
        found += kind.declare(set_name, options.get(name) or ())
    return tuple(found)


def settle(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the settings of a call in the order of application, each place on the host declared once."""
    kept: list[Setting] = []
    for kind in sorted(KINDS.values(), key=lambda kind: kind.RANK):
        kept += kind.check([setting for setting in settings if setting.kind == kind.NAME])
    owners: dict[Atom, Setting] = {}
    for setting in kept:
        other = owners.setdefault(atom(setting), setting)
        if other is not setting:
            raise TuningError(
                f"{setting.key}: declared twice in one call, by {other.set_name} ({other.key} = {other.value}) and by "
                f"{setting.set_name} ({setting.key} = {setting.value}); declare it once"
            )
    return tuple(kept)


def resolve(host: Host, settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the settings of a call as they are meant for this host."""
    return settle([_resolve(host, one, settings) for one in settings])


def _resolve(host: Host, setting: Setting, settings: Sequence[Setting]) -> Setting:
    try:
        return KINDS[setting.kind].resolve(host, setting, settings)
    except TuningError as error:
        raise TuningError(str(error), setting) from error


def explain(host: Host, setting: Setting) -> str | None:
    """Refuse a value that this host cannot take, or return a hint about a key that it does not know."""
    try:
        return KINDS[setting.kind].explain(host, setting)
    except TuningError as error:
        raise TuningError(str(error), setting) from error


def atom(setting: Setting) -> Atom:
    """Return the live atom that a setting governs."""
    return Atom(setting.kind, KINDS[setting.kind].place(setting))

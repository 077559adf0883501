# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find everybody else on the host who sets one of our settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, Writer
from ansible_collections.gpu_fleet.node.plugins.module_utils._writers import (
    _boot_line,
    _limits_files,
    _scripts,
    _sysctl_files,
    _tmpfiles,
    _tuned,
    _udev,
    _units,
)


def search(host: Host, settings: Sequence[Setting]) -> tuple[Writer, ...]:
    """Return the other owners of the settings; each place on the host is read once."""
    kinds = {setting.kind for setting in settings}
    units = (writer for one in settings if one.kind == "units" for writer in _units.writers(host, one))
    return (*_kernel(host, settings, kinds), *_limits(host, settings, kinds), *units)


def _limits(host: Host, settings: Sequence[Setting], kinds: set[str]) -> Iterator[Writer]:
    lines = _limits_files.read(host) if "limits" in kinds else []
    for setting in settings:
        if setting.kind == "limits":
            yield from _limits_files.writers(host, setting, lines)


def _kernel(host: Host, settings: Sequence[Setting], kinds: set[str]) -> Iterator[Writer]:
    if not kinds & {"sysctl", "sysfs"}:
        return
    words, scripts, rules, tuned = _boot_line.read(host), _scripts.read(host), _udev.read(host), _tuned.read(host)
    lines = _sysctl_files.read(host) if "sysctl" in kinds else []
    items = _tmpfiles.read(host) if "sysfs" in kinds else []

    def of(setting: Setting) -> Iterator[Writer]:
        yield from _boot_line.writers(setting, words)
        if setting.kind == "sysctl":
            yield from _sysctl_files.writers(setting, lines)
            yield from _sysctl_files.by_hand(host, setting, tuned is not None and tuned.reapplies)
        if setting.kind == "sysfs":
            yield from _tmpfiles.writers(setting, items)
        yield from _scripts.writers(host, setting, scripts)
        yield from _udev.writers(host, setting, rules)
        if tuned is not None:
            yield from _tuned.writers(host, setting, tuned)

    for setting in settings:
        if setting.kind in ("sysctl", "sysfs"):
            yield from of(setting)

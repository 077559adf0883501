# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What most kinds answer to the questions of the engine; a kind imports what it has nothing of its own to say about."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting

MISSING = "missing in this kernel"


def resolve(_host: Host, setting: Setting, _settings: Sequence[Setting]) -> Setting:
    """Return the setting: its value does not depend on the host."""
    return setting


def follows(_place: str) -> bool:
    """Tell that the live value is written by itself, before the files."""
    return False


def passing(_host: Host, _place: str, _state: str) -> tuple[str, ...]:
    """Return nothing: a live value is written at once."""
    return ()


def made(_host: Host, _place: str) -> tuple[str, ...]:
    """Return nothing: a live value leaves nothing else behind."""
    return ()


def running(_host: Host, _setting: Setting) -> str | None:
    """Return nothing: a live value is in force for everything that runs."""
    return None


def explain(_host: Host, _setting: Setting) -> str | None:
    """Return nothing: every host knows it and takes every value."""
    return None


def advice(_host: Host, _settings: Sequence[Setting]) -> list[str]:
    """Return nothing: the documentation of the roles says it."""
    return []


def place(setting: Setting) -> str:
    """Return the key: it names the one live atom."""
    return setting.key


def wanted(setting: Setting) -> str:
    """Return the value: it is the state of the atom."""
    return setting.value


def check(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the settings in the order of their keys: none contradicts another."""
    return tuple(sorted(settings, key=lambda setting: setting.key))

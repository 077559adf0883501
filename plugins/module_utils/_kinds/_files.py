# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kind `files`: whole files that are ours, with the text that a set gives or a program of the collection."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _libraries
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds import _plain
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _build
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Content, FileState, Setting, TuningError

NAME = "files"
RANK = 20
NO_LIVE = "a file is what it is, so it has no live value of its own"
MISSING = _plain.MISSING
advice = _plain.advice
explain = _plain.explain
follows = _plain.follows
made = _plain.made
passing = _plain.passing
running = _plain.running
place = _plain.place
wanted = _plain.wanted
check = _plain.check

PATH = re.compile(r"(/[A-Za-z0-9_.@+-]+){2,}")
PROGRAMS = {"gpu_run": _build.build}
MODE = re.compile(r"0?[0-7]{3}")
KERNEL = ("/proc/", "/sys/", "/dev/", "/run/", "/tmp/", "/var/lib/gpu-fleet/")


def declare(set_name: str, options: Sequence[Mapping[str, Any]]) -> tuple[Setting, ...]:
    """Turn the declared options into settings in normal form, or refuse them."""
    return tuple(_declare(set_name, option) for option in options)


def _declare(set_name: str, option: Mapping[str, Any]) -> Setting:
    path, mode = str(option["path"]), str(option.get("mode") or "0644")
    if not PATH.fullmatch(path) or posixpath.normpath(path) != path or path.startswith(KERNEL):
        raise TuningError(f"file path {path!r}: is not a plain path of a file that lasts over a reboot")
    if not MODE.fullmatch(mode) or int(mode, 8) & 0o022:
        raise TuningError(f"{path}: mode {mode!r} is not three octal digits that let only the owner write")
    payload = _payload(path, option)
    needed = tuple(str(word) for word in option.get("libraries") or ())
    strange = [word for word in needed if not word.isprintable() or not word]
    if strange:
        raise TuningError(f"{path}: the library {strange[0]!r} is not the name or path of one")
    return Setting(set_name, NAME, path, describe(payload, int(mode, 8)), payload=payload, libraries=needed)


def _payload(path: str, option: Mapping[str, Any]) -> bytes:
    content, program = option.get("content"), option.get("program")
    if (content is None) == (program is None):
        raise TuningError(f"{path}: expected either a content or a program")
    return PROGRAMS[program]() if program is not None else str(content).encode()


def resolve(host: Host, setting: Setting, _settings: Sequence[Setting]) -> Setting:
    """Return the setting with the paths that its libraries have on this host; refuse one that is not there."""
    payload = setting.payload
    for word in setting.libraries:
        try:
            path = _libraries.place(host, word)
        except TuningError as error:
            raise TuningError(f"{setting.key}: {error}") from error
        payload = payload.replace(f"@{word}@".encode(), path.encode())
    return replace(setting, value=describe(payload, _mode(setting.value)), payload=payload)


def describe(content: bytes, mode: int) -> str:
    """Return what stands for the file in messages and comparisons."""
    return f"sha256 {hashlib.sha256(content).hexdigest()[:16]}, {len(content)} bytes, mode {mode:04o}"


def _mode(description: str) -> int:
    return int(description.rsplit(" ", 1)[1], 8)


def live(_host: Host, _place: str) -> str | None:
    """Return nothing: a file has no live value."""
    return None


def obstacle(_host: Host, _place: str, _state: str) -> str | None:
    """Return nothing: a file that cannot be written is a failure."""
    return None


def write(_host: Host, place: str, _state: str) -> None:
    """Refuse: a file has no live value."""
    raise TuningError(f"{place}: {NO_LIVE}")


def files(settings: Sequence[Setting]) -> dict[str, Content]:
    """Return the files."""
    return {one.key: Content(one.payload, _mode(one.value)) for one in settings}


def parse(path: str, state: FileState) -> dict[str, str]:
    """Return the description of what stands there."""
    return {path: describe(state.content, state.mode) if state.link is None else f"a link to {state.link}"}


def persistence(_host: Host) -> str | None:
    """Return nothing: a file lasts."""
    return None

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The words of the engine as frozen values, and its one exception."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Union

Rule = Literal["exact", "at_least"]
Outcome = Literal["ok", "changed", "not_applicable", "pending", "conflict", "failed"]
Stage = Literal["boot_line", "boot_file", "late", "manager", "by_hand", "specific"]


class TuningError(Exception):
    """One sentence for the operator: the thing, what is wrong, what was expected or what to do.

    `setting` is the one that this host does not take, where it is about one.
    """

    def __init__(self, sentence: str, setting: Setting | None = None) -> None:
        """Stop with a sentence."""
        super().__init__(sentence)
        self.setting = setting


@dataclass(frozen=True)
class Setting:
    """One thing with one wanted value, as a set declares it; key and value are in their normal form."""

    set_name: str
    kind: str
    key: str
    value: str
    rule: Rule = "exact"
    one_way: bool = False  # the operator agreed that only a reboot takes it back
    when_missing: str | None = None  # the value that holds where the host has no such attribute
    payload: bytes = b""  # what a file is to hold, where the value only describes it
    libraries: tuple[str, ...] = ()  # that the payload names, and that the host must have
    caveat: str | None = None  # what the value does not do on this host, as facts say
    restart: bool = False  # the operator agreed that what runs with another value is restarted


@dataclass(frozen=True)
class FileState:
    """Everything about a file that a rollback must give back; a missing file is None."""

    content: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    link: str | None = None  # the target, when the path is a symbolic link
    # Labels and capabilities travel with a restored original, but do not make two files different.
    xattrs: tuple[tuple[str, bytes], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Content:
    """What a file of ours is to hold; its owner is root."""

    text: bytes
    mode: int = 0o644


# What an atom can hold: text in the kernel or a manager, a file, or nothing at all.
State = Union[str, FileState, None]


@dataclass(frozen=True)
class Atom:
    """One place on the host that is read and written whole: a kernel value (kind, key) or a file (`file`, path)."""

    kind: str
    key: str

    def __str__(self) -> str:
        """Name the atom the way messages and the journal do."""
        return f"{self.kind}:{self.key}"


@dataclass(frozen=True)
class Writer:
    """Another owner of a setting, found on the host."""

    kind: str
    key: str
    value: str | None  # None: the writer names the setting, but what it writes is not understood
    source: str  # what the operator is told: a file and line, a unit, a profile, a boot-line word
    stage: Stage  # when it acts, a later stage wins at boot; by hand is not at boot, and specific is for some users
    order: str = ""  # the base name of a file read at boot
    pattern: bool = False  # it names the setting by a glob
    rule: Rule = "exact"
    reapplies: bool = True  # False: a manager that writes the stored value of others back after its own


@dataclass(frozen=True)
class Boot:
    """What the next boot gives and who decides it; `value` None needs a `reason`."""

    value: str | None
    winner: str | None  # None: nobody writes it, so the kernel decides
    ours: bool
    reason: str | None = None

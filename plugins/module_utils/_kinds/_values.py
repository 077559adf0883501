# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values: their normal form, and the comparison of numbers with a floor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, TuningError

LONGEST = 4096  # a page: the kernel takes no more at once


def one_line(text: str) -> str:
    """Return the text with single blanks: the kernel prints tabs where people write spaces."""
    return " ".join(text.split())


def clean(key: str, option: Mapping[str, Any]) -> str:
    """Return the wanted value in normal form, or refuse what cannot be meant as one."""
    value = option.get("value")
    text = "" if value is None else str(value)
    if text in ("True", "False"):
        raise TuningError(f"{key}: the value is a boolean, but the kernel takes numbers and words; quote it as one")
    if any(mark in text.rstrip() for mark in "\n\r\0"):
        raise TuningError(f"{key}: the value has a line break or a NUL in it, expected one line")
    if len(text) > LONGEST:
        raise TuningError(f"{key}: the value has {len(text)} characters, expected at most {LONGEST}")
    if any(mark.isdigit() and not mark.isascii() for mark in text):
        raise TuningError(f"{key}: the value {text!r} has a digit other than 0 to 9 in it, which no kernel reads")
    if text.startswith(("[", "{")):
        raise TuningError(f"{key}: the value is a list or a mapping, expected one string such as '4096 65536 16777216'")
    if not text.strip():
        raise TuningError(f"{key}: the value is empty, expected a number or a word")
    return one_line(text)


def numbers(key: str, text: str) -> tuple[int, ...]:
    """Return the numbers in a value, for a floor."""
    try:
        return tuple(int(word) for word in text.split())
    except ValueError as error:
        raise TuningError(f"{key}: a floor compares numbers, but {text!r} is none; use rule exact") from error


def comparable(setting: Setting, state: str) -> bool:
    """Tell whether a state of the host can be compared with the floor at all."""
    try:
        raised(setting.key, state, setting.value)
    except TuningError:
        return False
    return True


def reaches(setting: Setting, state: str) -> bool:
    """Tell whether a state of the host satisfies a floor, number by number."""
    return raised(setting.key, state, setting.value) == " ".join(map(str, numbers(setting.key, state)))


def raised(key: str, state: str, floor: str) -> str:
    """Return the state with each number raised to the floor where it is lower."""
    have, least = numbers(key, state), numbers(key, floor)
    if len(have) != len(least):
        raise TuningError(f"{key}: the floor {floor!r} has {len(least)} numbers, but the host has {state!r}")
    return " ".join(str(max(pair)) for pair in zip(have, least))

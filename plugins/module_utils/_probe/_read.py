# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what may not be there: a value or the reason why there is none."""

from __future__ import annotations

import re

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

NUMBER = re.compile(r"[+-]?\d+")


def text(host: Host, path: str) -> str | None:
    """Return the text of a file without the blanks around it; None where it is missing or refuses to be read."""
    try:
        content = host.read(path)
    except TuningError:
        return None
    return None if content is None else clean(content.strip())


def why_not(host: Host, path: str) -> str:
    """Return why `text` gave None."""
    try:
        content = host.read(path)
    except TuningError as error:
        return str(error)
    return f"{path}: is missing" if content is None else f"{path}: is empty"


def number(host: Host, path: str) -> int | None:
    """Return a file's one number; None where it is missing or holds something else (`max`)."""
    content = text(host, path)
    return int(content) if content is not None and NUMBER.fullmatch(content) else None


def names(host: Host, path: str) -> list[str]:
    """Return the sorted names in a folder; none where it is missing or refuses to be listed."""
    try:
        return host.names(path)
    except TuningError:
        return []


def clean(content: str) -> str:
    """Return text that JSON can carry: bytes that are no UTF-8 become question marks."""
    return content.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

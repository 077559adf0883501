# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a call asks for: sets, checked and in normal form, before the host is looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _kinds
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting, TuningError

SET_NAME = re.compile(r"[A-Za-z0-9_]+")  # it becomes part of a file name


@dataclass(frozen=True)
class Request:
    """The sets that a call names, what they declare, and how strictly it is meant."""

    names: tuple[str, ...]
    settings: tuple[Setting, ...]
    strict: bool = False
    force: bool = False
    reload: str = "auto"


def request(params: Mapping[str, Any]) -> Request:
    """Build the request from module parameters; `state: absent` declares nothing for the sets that it names."""
    sets: Sequence[Mapping[str, Any]] = params["sets"]
    names = tuple(one["name"] for one in sets)
    for name in names:
        if not SET_NAME.fullmatch(name):
            raise TuningError(f"set name {name!r}: may have letters, digits and underscores only")
        if names.count(name) > 1:
            raise TuningError(f"set {name}: is named twice in one call; name it once, with all that it declares")
    absent = params.get("state") == "absent"
    declared = [] if absent else [setting for one in sets for setting in _kinds.declare(one["name"], one)]
    settings = _kinds.settle(declared)
    flags = bool(params.get("strict")), bool(params.get("force"))
    return Request(names, settings, *flags, reload=params.get("reload") or "auto")

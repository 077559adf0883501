# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of a host on the host itself: one file for each run, the oldest removed first."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

NEEDED = ("ended", "verdict", "measurements")  # for a comparison; what another version wrote may lack them
NAME = re.compile(r"^validate-\d{8}T\d{6}Z(-\d+)?\.json$")


def runs(folder: str) -> list[str]:
    """Return the files of past runs, the newest last."""
    return sorted(name for name in os.listdir(folder) if NAME.match(name)) if os.path.isdir(folder) else []


def last(folder: str, profile: str) -> dict[str, Any] | None:
    """Return the newest result of the same profile that can be read."""
    for name in reversed(runs(folder)):
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as stream:
                result = json.load(stream)
        except (OSError, ValueError):
            continue
        if isinstance(result, dict) and result.get("profile") == profile and set(NEEDED) <= set(result):
            return result
    return None


def keep(folder: str, result: Mapping[str, Any], most: int) -> str:
    """Write a result beside the others, whole or not at all, and drop those beyond `most`."""
    moment = re.sub(r"[-:]", "", str(result["ended"]))
    path = os.path.join(folder, f"validate-{moment}.json")
    try:
        os.makedirs(folder, 0o755, exist_ok=True)
        with open(path + ".new", "w", encoding="utf-8") as stream:
            json.dump(result, stream, indent=1, sort_keys=True)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(path + ".new", path)
        for name in runs(folder)[:-most]:
            os.unlink(os.path.join(folder, name))
    except OSError as error:
        raise TuningError(
            f"{folder}: the result cannot be kept there ({error.strerror}); set validate_memory_history"
        ) from error
    return path

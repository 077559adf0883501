# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file with what an administrator gives every job that gpu-run starts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

PATH = "/etc/gpu-fleet/gpu-run.json"
KEYS = ("environment", "slice")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SLICE = re.compile(r"[A-Za-z0-9:_.\\][A-Za-z0-9:_.\\-]*\.slice")
PRELOAD = "LD_PRELOAD"  # libraries, parted by blanks or colons
OURS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # gpu-run sets these itself, for each command


@dataclass(frozen=True)
class Defaults:
    """Variables that a command gets unless the caller has set them, and the slice that it enters; empty for none."""

    environment: Mapping[str, str] = field(default_factory=dict)
    slice: str = ""


def parse(text: str) -> Defaults:
    """Read the file's text; ValueError has a sentence for what it may not say."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from error
    if not isinstance(data, dict) or not set(data) <= set(KEYS):
        raise ValueError(f"holds something else than a mapping with the keys {' and '.join(KEYS)}")
    given = Defaults(data.get("environment", {}), data.get("slice", ""))
    for problem in problems(given):
        raise ValueError(problem)
    return given


def preloads(defaults: Defaults) -> list[str]:
    """Return the libraries that every command is to load first."""
    return [word for word in re.split("[ :]+", defaults.environment.get(PRELOAD, "")) if word]


def render(defaults: Defaults) -> str:
    """Write the file's text."""
    content = {"environment": dict(defaults.environment), "slice": defaults.slice}
    return json.dumps(content, indent=4, sort_keys=True) + "\n"


def problems(defaults: Defaults) -> list[str]:
    """Return one sentence for each thing that cannot be meant."""
    if not isinstance(defaults.environment, dict):
        return ["environment: is not a mapping of names to texts"]
    found = [sentence for pair in defaults.environment.items() for sentence in _problem(*pair)]
    if not isinstance(defaults.slice, str) or (defaults.slice and not is_slice(defaults.slice)):
        found.append(f"slice {defaults.slice!r}: is not the name of a slice, expected one like gpu-jobs.slice")
    return found


def _problem(name: object, value: object) -> list[str]:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return [f"environment {name!r}: is not the name of a variable"]
    if name in OURS:
        return [f"environment {name}: is set by gpu-run for each command, so it has no value for all of them"]
    if not isinstance(value, str) or "\0" in value or "\n" in value:
        return [f"environment {name}: is not a text on one line"]
    return []


def is_slice(name: str) -> bool:
    """Tell whether systemd would take this as the name of a slice; a dash in it stands for a level."""
    stem = name[: -len(".slice")]
    return bool(SLICE.fullmatch(name)) and "--" not in stem and not stem.endswith("-")

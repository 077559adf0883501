# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather the allocator facts: each source in a child of its own, one deadline over all of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import (
    _advisories,
    _groups,
    _huge_pages,
    _kernel,
    _left,
    _limits,
    _malloc,
    _oom,
    _torch,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._figures import group, number
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Options, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _child

Source = Callable[[Scene], Any]


def _host(scene: Scene) -> dict[str, Any]:
    scope = group(_torch.YAMA, {"value": number(scene.host, _torch.YAMA)})
    return {**_kernel.gather(scene), "thp": _huge_pages.gather(scene), "ptrace_scope": scope}


# In this order: what is cheap and sure comes first, and an interpreter that hangs costs only what is left.
SOURCES: tuple[tuple[str, Source], ...] = (
    ("host", _host),
    ("cgroup", _groups.gather),
    ("oom", _oom.gather),
    ("limits", _limits.gather),
    ("malloc", _malloc.gather),
    ("torch", _torch.gather),
)


@dataclass
class Progress:
    """What has been gathered so far and which processes could not be ended."""

    facts: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    left: list[tuple[str, int, int]] = field(default_factory=list)


def gather(host: Host, options: Options, timeout: float) -> dict[str, Any]:
    """Return the facts; never later than the timeout and a second, whatever hangs."""
    began = time.monotonic()
    until = began + timeout
    progress, standing = Progress(), _left.standing(host)
    for name, source in SOURCES:
        if name in standing:
            pids = ", ".join(map(str, standing[name]))
            _note(progress, name, "timeout", f"process {pids} of an earlier run still hangs")
            continue
        _one(host, options, progress, (name, source, _share(name, until)))
    problem = _left.remember(host, progress.left)
    return {
        **progress.facts,
        **_advisories.match(progress.facts, os.uname().release),
        "gathered_from": progress.told,
        "left_behind": sorted(
            {pid for pids in standing.values() for pid in pids} | {pid for _source, pid, _start in progress.left}
        ),
        "left_behind_reason": problem,
        "gathered_at": int(time.time()),
        "duration": round(time.monotonic() - began, 3),
    }


def _share(name: str, until: float) -> float:
    """Return until when a source may take: half of what is left, so that one that hangs does not cost the others."""
    now = time.monotonic()
    return until if name == SOURCES[-1][0] else now + max(until - now, 0.0) / 2


def _one(host: Host, options: Options, progress: Progress, task: tuple[str, Source, float]) -> None:
    name, source, until = task

    def work() -> Mapping[str, Any]:
        scene = Scene(host, options, until)
        facts = source(scene)
        return {"facts": facts, "left": [(one.pid, one.start) for one in scene.left]}

    result = _child.call(work, until)
    progress.left += [(name, one.pid, one.start) for one in result.left]
    if result.status == "timeout":
        return _note(progress, name, "timeout", f"{name}: no answer within {result.seconds:.1f} s")
    if result.code != 0:
        return _note(progress, name, "error", f"{name}: the source ended early ({result.errors[:300] or result.code})")
    answer = _clean(json.loads(result.output))
    progress.left += [(name, pid, start) for pid, start in answer["left"]]
    progress.facts[name] = answer["facts"]
    progress.told[name] = {"state": "ok", "detail": None, "seconds": round(result.seconds, 3)}
    return None


def _clean(value: Any) -> Any:
    """Return an answer that Ansible can carry: what is no text in a path or a variable becomes a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_clean(one) for one in value]
    return {_clean(name): _clean(one) for name, one in value.items()} if isinstance(value, dict) else value


def _note(progress: Progress, name: str, state: str, detail: str) -> None:
    progress.facts[name] = None
    progress.told[name] = {"state": state, "detail": detail, "seconds": None}

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather the GPU facts of a host: each source in a child, one deadline over all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import (
    _assemble,
    _figures,
    _nvml,
    _pci,
    _policy,
    _smi,
    _state,
    _summary,
    _xid,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._assemble import Scene, Told
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._state import Source
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _child, _kernel_log, _process, _stuck

LONGEST = 600
# Of the deadline: sysfs reads the cards' own registers, and /proc/driver/nvidia takes the driver's lock.
KERNEL_SHARE = 0.25
KERNEL_FILES = "sysfs and /proc/driver/nvidia"
# After one of these the tool has nothing to add; after a mismatch it may name the library's version.
FINAL = ("ok", "timeout", "driver_not_loaded", "permission", "gpu_lost")


@dataclass(frozen=True)
class Heard:
    """What NVML or nvidia-smi said."""

    source: Source
    told: Sequence[Told] = ()
    driver: str | None = None
    library: str | None = None
    cuda: str | None = None


NOT_ASKED = Heard(Source("not_asked"))


def gather(host: Host, timeout: float = 8.0, expected: int | None = None) -> dict[str, Any]:
    """Return the facts; never later than the timeout and a second, whatever the driver does."""
    _check(timeout, expected)
    began = time.monotonic()
    _stuck.tidy(host)
    standing = _stuck.standing(host)
    scene, kernel, loaded = _look(host, began + timeout * KERNEL_SHARE, bool(standing))
    nvml, smi = _refuse(standing) if standing else _ask_driver(host, began + timeout, kernel)
    scene = replace(scene, told=nvml.told or smi.told)
    gpus = _assemble.gpus(scene)
    if "ok" in (nvml.source.state, smi.source.state):
        _assemble.mark_lost(gpus, scene)
    # The kernel alone says what is there, not whether the stack works: only its failure counts here.
    sources = [nvml.source, smi.source, *([kernel] if kernel.state != "ok" else [])]
    verdict = _state.decide(scene.cards, loaded, sources, gpus)
    return {
        **vars(verdict),
        "present": bool(gpus or scene.cards),
        "count": len(gpus),
        **_summary.expected(scene, gpus, expected),
        "driver": _versions(loaded, nvml, smi),
        "gpus": gpus,
        "busy": [one["bus_id"] for one in gpus if one["busy"]],
        "amd_gpus": _summary.amd(scene),
        "numa": _summary.numa(scene, gpus),
        "gathered_from": {"sysfs": vars(kernel), "nvml": vars(nvml.source), "nvidia_smi": vars(smi.source)},
        "left_behind": [pid for source in (kernel, nvml.source, smi.source) for pid in source.left],
        "gathered_at": int(time.time()),
        "duration": round(time.monotonic() - began, 3),
    }


def _check(timeout: float, expected: int | None) -> None:
    if not 0 < timeout <= LONGEST:
        raise TuningError(f"timeout {timeout}: is not above 0 and at most {LONGEST} seconds")
    if expected is not None and expected < 0:
        raise TuningError(f"expected_count {expected}: is negative, a number of GPUs was expected")


def _look(host: Host, until: float, careful: bool) -> tuple[Scene, Source, _pci.Driver]:
    """Read what the kernel shows, in a child of its own; a card that hangs its registers costs only this."""
    result = _child.call(lambda: _kernel_view(host, careful), until)
    if result.status == "timeout":
        detail = f"{KERNEL_FILES}: reading did not end{_remember(host, result.left, KERNEL_FILES)}"
        source = Source("timeout", detail, None, _pids(result.left))
        return Scene([], _topology.nodes(host.root)), source, _pci.Driver(None, None)
    if result.code != 0:
        source = Source("driver_error", f"{KERNEL_FILES}: {result.errors[:200]}")
        return Scene([], _topology.nodes(host.root)), source, _pci.Driver(None, None)
    view = json.loads(result.output)
    cards = [_pci.Card(**_pci.unpack_device(one)) for one in view["cards"]]
    adapters = [_pci.Adapter(**_pci.unpack_device(one)) for one in view["adapters"]]
    scene = Scene(cards, _topology.nodes(host.root), adapters, (), view["xids"], view["log_reason"], view["policy"])
    return scene, Source("ok"), _pci.Driver(**view["driver"])


def _kernel_view(host: Host, careful: bool) -> dict[str, Any]:
    """Return all of it; `careful` asks neither the cards nor the driver, whose files would hang as its calls do."""
    cards, loaded = (_pci.bare_cards, _pci.module) if careful else (_pci.cards, _pci.driver)
    records, log_reason = _kernel_log.read(host)
    return {
        "cards": [_pci.pack_device(card) for card in cards(host)],
        "adapters": [_pci.pack_device(adapter) for adapter in _pci.adapters(host)],
        "driver": vars(loaded(host)),
        "xids": _xid.find(records),
        "log_reason": log_reason,
        "policy": _policy.allowed(),
    }


def _refuse(standing: Sequence[_stuck.Stuck]) -> tuple[Heard, Heard]:
    """Ask nobody while a call of an earlier run hangs in the driver."""
    names = ", ".join(f"{one.command} (process {one.pid})" for one in standing)
    detail = f"a driver call of an earlier run still hangs: {names}"
    return Heard(Source("timeout", detail, None, tuple(one.pid for one in standing))), NOT_ASKED


def _ask_driver(host: Host, until: float, kernel: Source) -> tuple[Heard, Heard]:
    """Ask NVML and, where it has no answer, the tool."""
    if kernel.state == "timeout":
        return NOT_ASKED, NOT_ASKED
    nvml = _ask_nvml(host, until)
    return nvml, NOT_ASKED if nvml.source.state in FINAL else _ask_tool(host, until)


def _ask_nvml(host: Host, until: float) -> Heard:
    """Ask NVML; where a call about one GPU does not return, those before it are told all the same."""
    result = _child.stream(_nvml.gather, until)
    answers = [json.loads(line) for line in result.output.split("\n")[:-1]]
    start = answers[0] if answers else {}
    told = [
        Told("nvml", one["bus_id"], _figures.unpack(one["figures"]), one["memory_nodes"], one["problem"])
        for one in answers
        if "figures" in one
    ]
    if result.status == "timeout":
        about = f" about GPU {answers[-1]['asking']}" if "asking" in (answers or [{}])[-1] else ""
        detail = f"NVML: a call{about} did not return{_remember(host, result.left, 'NVML')}"
        source = Source("timeout", detail, start.get("binding"), _pids(result.left))
    elif result.code != 0:
        ending = f"killed by signal {-result.code}" if result.code and result.code < 0 else result.errors[:200]
        return Heard(Source("driver_error", f"NVML: the call ended ({ending})"))
    else:
        source = _state.of_code(start)
    return Heard(source, told, start.get("driver"), start.get("library"), start.get("cuda"))


def _ask_tool(host: Host, until: float) -> Heard:
    answer = _smi.gather(until, len(_topology.nodes(host.root)) > 1)
    detail = f"{answer.detail or ''}{_remember(host, answer.left, answer.command)}" or None
    told = [
        Told("nvidia-smi", address, figures, answer.nodes.get(address, ()), _figures.lost(figures))
        for address, figures in answer.gpus
    ]
    source = Source(answer.state, detail, answer.command or None, _pids(answer.left))
    return Heard(source, told, answer.driver, answer.library, answer.cuda)


def _pids(left: Sequence[_process.Process]) -> tuple[int, ...]:
    return tuple(one.pid for one in left)


def _remember(host: Host, left: Sequence[_process.Process], command: str) -> str:
    """Note the children that could not be ended; return what to add to the sentence about them."""
    if not left:
        return ""
    problem = _stuck.remember(host, left, command)
    pids = ", ".join(str(one.pid) for one in left)
    return f"; process {pids} cannot be ended" + (f" and is not remembered ({problem})" if problem else "")


def _versions(loaded: _pci.Driver, nvml: Heard, smi: Heard) -> dict[str, Any]:
    """Return the versions; the library's own where it is known, which is what a mismatch is about."""
    return {
        "loaded": loaded.version or nvml.driver or smi.driver,
        "kind": loaded.kind,
        "library": _short(nvml.library or smi.library),
        "cuda": nvml.cuda or smi.cuda,
    }


def _short(version: str | None) -> str | None:
    """Return a library version as the driver counts: NVML itself puts CUDA's major number before it."""
    major, _dot, rest = (version or "").partition(".")
    return rest if rest and major.isdigit() and int(major) < 100 else version

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather the GPU facts of a host: each source in a child, one deadline over all of them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _assemble, _nvml, _pci, _smi, _state, _xid
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import Figure, unpack
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._state import Source
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _child, _kernel_log, _stuck

KERNEL_SHARE = (
    0.25  # of the deadline: sysfs reads the cards' own registers and /proc/driver/nvidia takes the driver's lock
)
# After one of these the tool has nothing to add; after a mismatch it may name the library's version.
FINAL = ("ok", "timeout", "driver_not_loaded", "permission", "gpu_lost")


def gather(host: Host, timeout: float = 8.0, expected: int | None = None) -> dict[str, Any]:
    """Return the facts; never later than the timeout and a second, whatever the driver does."""
    began = time.monotonic()
    until = began + timeout
    _stuck.tidy(host)
    scene, kernel, kernel_driver = _look(host, began + timeout * KERNEL_SHARE)
    nvml, smi, left = _ask_driver(host, until, kernel)
    told = nvml.pop("told") or _of_tool(smi)
    scene = _assemble.Scene(scene.devices, scene.nodes, scene.adapters, told, scene.xids, scene.log_reason)
    facts = _assemble.gpus(scene)
    if any(source.state == "ok" for source in (nvml["source"], smi["source"])):
        _assemble.mark_lost(facts, scene)
    # The kernel alone says what is there, not whether the stack works: only its failure counts here.
    sources = [nvml["source"], smi["source"], *([kernel] if kernel.state != "ok" else [])]
    verdict = _state.decide(scene.devices, kernel_driver, sources, facts)
    ours = [device for device in scene.devices if device.vendor == _pci.NVIDIA]
    count = len(ours) or len(told)
    return {
        "state": verdict.state,
        "detail": verdict.detail,
        "action": verdict.action,
        "present": bool(count or any(device.vendor == _pci.AMD for device in scene.devices)),
        "count": count,
        **_assemble.expected(facts, expected),
        "driver": _driver(kernel_driver, nvml, smi),
        "gpus": facts,
        "busy": [one["bus_id"] for one in facts if one["busy"]],
        "amd_gpus": _assemble.amd(scene),
        "numa": _assemble.numa(scene.nodes, facts),
        "gathered_from": {
            "sysfs": asdict(kernel),
            "nvml": asdict(nvml["source"]),
            "nvidia_smi": asdict(smi["source"]),
        },
        "left_behind": left,
        "gathered_at": int(time.time()),
        "duration": round(time.monotonic() - began, 3),
    }


def _look(host: Host, until: float) -> tuple[_assemble.Scene, Source, _pci.Driver]:
    """Read what the kernel shows, in a child of its own; a card that hangs its registers costs only this."""
    result = _child.call(lambda: _kernel_view(host), until)
    if result.status == "timeout" or result.code != 0:
        _stuck.remember(host, result.left, "reading sysfs and /proc/driver/nvidia")
        state = "timeout" if result.status == "timeout" else "driver_error"
        detail = "sysfs and /proc/driver/nvidia: reading did not end" if state == "timeout" else result.errors
        return _assemble.Scene([], _topology.nodes(host)), Source(state, detail), _pci.Driver(None, None)
    view = json.loads(result.output)
    devices, adapters = ([_device(one) for one in view[key]] for key in ("devices", "adapters"))
    scene = _assemble.Scene(devices, _topology.nodes(host), adapters, (), view["xids"], view["log_reason"])
    return scene, Source("ok"), _pci.Driver(**view["driver"])


def _kernel_view(host: Host) -> dict[str, Any]:
    records, log_reason = _kernel_log.read(host)
    return {
        "devices": [asdict(device) for device in _pci.devices(host, _pci.GPU_CLASSES)],
        "adapters": [asdict(device) for device in _pci.devices(host, _pci.NETWORK_CLASSES)],
        "driver": asdict(_pci.driver(host)),
        "xids": _xid.find(records),
        "log_reason": log_reason,
    }


def _device(packed: dict[str, Any]) -> _pci.Device:
    reading = {name: Figure(**figure) for name, figure in packed["reading"].items()}
    return _pci.Device(**{**packed, "reading": reading, "branch": tuple(packed["branch"])})


def _ask_driver(host: Host, until: float, kernel: Source) -> tuple[dict[str, Any], dict[str, Any], list[int]]:
    """Ask NVML and, where it has no answer, the tool; neither while a call of an earlier run hangs in the driver."""
    silent: dict[str, Any] = {"source": Source("not_asked"), "told": []}
    standing = _stuck.standing(host)
    if standing:
        names = ", ".join(f"{one.command} (process {one.pid})" for one in standing)
        source = Source("timeout", f"a driver call of an earlier run still hangs: {names}")
        return {**silent, "source": source}, dict(silent), [one.pid for one in standing]
    if kernel.state == "timeout":
        return silent, dict(silent), []
    nvml = _ask_nvml(host, until)
    smi = dict(silent) if nvml["source"].state in FINAL else _ask_tool(host, until)
    return nvml, smi, [one.pid for answer in (nvml, smi) for one in answer.get("left", ())]


def _ask_nvml(host: Host, until: float) -> dict[str, Any]:
    result = _child.call(_nvml.gather, until)
    if result.status == "timeout":
        detail = _remember(host, result.left, "NVML")
        return {"source": Source("timeout", f"NVML: a call did not return{detail}"), "told": [], "left": result.left}
    if result.code != 0:
        ending = f"killed by signal {-result.code}" if result.code and result.code < 0 else result.errors[:200]
        return {"source": Source("driver_error", f"NVML: the call ended ({ending})"), "told": []}
    answer = json.loads(result.output)
    told = [
        _assemble.Told("nvml", one["bus_id"], unpack(one["figures"]), one["memory_nodes"], one["problem"])
        for one in answer.get("gpus", [])
    ]
    return {**answer, "source": _state.of_code(answer), "told": told}


def _ask_tool(host: Host, until: float) -> dict[str, Any]:
    answer = _smi.gather(until, len(_topology.nodes(host)) > 1)
    detail = _remember(host, answer.left, answer.command) if answer.left else ""
    return {
        **vars(answer),
        "source": Source(answer.state, f"{answer.detail or ''}{detail}" or None, answer.command or None),
    }


def _remember(host: Host, left: Any, command: str) -> str:
    """Note the children that could not be ended; return what to add to the sentence about them."""
    if not left:
        return ""
    problem = _stuck.remember(host, left, command)
    pids = ", ".join(str(one.pid) for one in left)
    return f"; process {pids} cannot be ended" + (f" and is not remembered ({problem})" if problem else "")


def _of_tool(smi: dict[str, Any]) -> list[_assemble.Told]:
    nodes = smi.get("nodes", {})
    told = []
    for address, figures in smi.get("gpus", []):
        table = nodes.get(address, {})
        extra = {
            "memory_node": Figure(table.get("memory_node"), "not reported"),
            "local_cpus": Figure(table.get("local_cpus"), "not reported"),
        }
        told.append(_assemble.Told("nvidia-smi", address, {**extra, **figures}, table.get("nodes", ())))
    return told


def _driver(loaded: _pci.Driver, nvml: dict[str, Any], smi: dict[str, Any]) -> dict[str, Any]:
    """Return the versions; the library's own where it is known, which is what a mismatch is about."""
    return {
        "loaded": loaded.version or nvml.get("driver") or smi.get("driver"),
        "kind": loaded.kind,
        "library": _short(nvml.get("library") or smi.get("library")),
        "cuda": nvml.get("cuda") or smi.get("cuda"),
    }


def _short(version: str | None) -> str | None:
    """Return a library version as the driver counts: NVML itself puts CUDA's major number before it."""
    major, _, rest = (version or "").partition(".")
    return rest if rest and major.isdigit() and int(major) < 100 else version

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of the GPU stack as one word, a sentence, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._binding import (
    LIBRARY_NOT_FOUND,
    NOT_PERMITTED,
    WORDS,
    explain,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._nvml import NO_BINDING
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._pci import Card, Driver
from ansible_collections.gpu_fleet.node.plugins.module_utils._topology import AMD, NVIDIA

State = Literal[
    "ok",
    "no_gpu",
    "driver_not_loaded",
    "version_mismatch",
    "timeout",
    "gpu_lost",
    "permission",
    "no_library",
    "driver_error",
]
CODES: dict[int, State] = {
    NOT_PERMITTED: "permission",
    9: "driver_not_loaded",
    10: "timeout",
    LIBRARY_NOT_FOUND: "no_library",
    15: "gpu_lost",
    18: "version_mismatch",
}
ACTIONS: dict[State, str | None] = {
    "ok": None,
    "no_gpu": "nothing to do where no GPU is expected; otherwise look at lspci and at the passthrough settings",
    "driver_not_loaded": "load the driver (modprobe nvidia) or install one for this kernel, and look at the kernel log",
    "version_mismatch": "reboot or reload the driver",
    "timeout": (
        "look at the kernel log for XIDs and hung tasks (a process stuck in the driver goes only with a reboot); "
        "where the driver only starts slowly, turn persistence on or raise timeout"
    ),
    "gpu_lost": "drain the host, then reset the GPU or power-cycle the host, and look at the kernel log for XIDs",
    "permission": "run as root, or allow this user (or container) to use /dev/nvidia*",
    "no_library": "install the driver's libraries (libnvidia-ml.so.1) or nvidia-smi, of the loaded driver's version",
    "driver_error": "look at the kernel log, and run nvidia-smi by hand",
}


@dataclass(frozen=True)
class Source:
    """How one source did: `state` is ok, absent, not_asked or a State; `by` is NVML's binding or the tool's command."""

    state: str
    detail: str | None = None
    by: str | None = None
    left: tuple[int, ...] = ()  # the processes that could not be ended


@dataclass(frozen=True)
class Verdict:
    """The word, the sentence and the remedy."""

    state: State
    detail: str | None
    action: str | None


def of_code(answer: dict[str, Any]) -> Source:
    """Return how NVML did from its own answer."""
    code, binding = answer["code"], answer.get("binding")
    if code == 0:
        return Source("ok", None, binding)
    if code == NO_BINDING:
        return Source("absent", "pynvml is not installed for this Python")
    if code == LIBRARY_NOT_FOUND:
        return Source("absent", "libnvidia-ml.so.1 is not installed", binding)
    return Source(CODES.get(code, "driver_error"), f"NVML: {explain(code)}", binding)


def decide(cards: Sequence[Card], driver: Driver, sources: Sequence[Source], gpus: Sequence[dict[str, Any]]) -> Verdict:
    """Return the state from what PCI shows, what is loaded, and how NVML and nvidia-smi did, in this order."""
    nvidia = [card for card in cards if card.where.vendor == NVIDIA and not card.passed_on]
    failed = [source for source in sources if source.state not in ("ok", "absent", "not_asked")]
    timeouts = [source for source in failed if source.state == "timeout"]
    lost = [gpu for gpu in gpus if gpu["lost"]]
    denied = [gpu for gpu in gpus if gpu["problem"] == WORDS[NOT_PERMITTED]]
    if timeouts:
        return _verdict("timeout", timeouts[0].detail)
    if lost:
        return _of_gpus("gpu_lost", lost)
    if denied:
        return _of_gpus("permission", denied)
    if any(gpu["visible"] for gpu in gpus):
        return _verdict("ok", None)
    if not nvidia:
        return _without_nvidia(cards)
    if failed:
        return _from_failures(failed, driver)
    if any(source.state == "ok" for source in sources):
        return _verdict("driver_error", f"the driver answers, but lists none of the {len(nvidia)} GPUs that PCI shows")
    if driver.version is None:
        return _verdict("driver_not_loaded", "no NVIDIA kernel module is loaded")
    return _verdict("no_library", f"driver {driver.version} is loaded, but neither NVML nor nvidia-smi can be asked")


def _of_gpus(state: State, gpus: Sequence[dict[str, Any]]) -> Verdict:
    names = ", ".join(str(gpu["bus_id"] or gpu["index"]) for gpu in gpus)
    return _verdict(state, f"GPU {names}: {gpus[0]['problem']}")


def _from_failures(failed: Sequence[Source], driver: Driver) -> Verdict:
    """Take the failure that says most: a reason by name before "some error"."""
    named = [source for source in failed if source.state not in ("driver_error", "no_gpu")]
    if not named and driver.version is None:
        return _verdict("driver_not_loaded", "no NVIDIA kernel module is loaded")
    first = (named or list(failed))[0]
    # A driver that finds no GPU where PCI shows one could not start it.
    state: Any = "driver_error" if first.state == "no_gpu" else first.state
    return _verdict(state, first.detail)


def _without_nvidia(cards: Sequence[Card]) -> Verdict:
    amd = [card for card in cards if card.where.vendor == AMD and not card.passed_on]
    if not amd:
        passed_on = "; those that it shows are handed to virtual machines" if cards else ""
        return _verdict("no_gpu", f"PCI shows no GPU for this system{passed_on}")
    idle = [card.where.address for card in amd if card.where.driver is None]
    if idle:
        return Verdict(
            "driver_not_loaded", f"GPU {', '.join(idle)}: no driver is bound", "load the driver (modprobe amdgpu)"
        )
    return _verdict("ok", None)


def _verdict(state: State, detail: str | None) -> Verdict:
    return Verdict(state, detail, ACTIONS[state])

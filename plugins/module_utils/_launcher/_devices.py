# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which devices a command is meant for: those named, that of its rank, or all that it was given; never more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Device, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._options import RefusalError

LISTS = ("CUDA_VISIBLE_DEVICES",)
NOTHING = ("", "-1", "none", "void", "NoDevFiles")
RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
)


def rank(environment: Mapping[str, str]) -> int | None:
    """Return the local rank that a launcher gave this process; a batch script of Slurm has 0 without being a rank."""
    for name in RANKS:
        text = environment.get(name, "")
        if name == "SLURM_LOCALID" and environment.get("SLURM_STEP_TASKS_PER_NODE", "1") == "1":
            continue
        if text.isdigit():
            return int(text)
    return None


def given(scene: Scene) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the devices that a scheduler or the user left us, and a note about what is none; all where nobody did."""
    if scene.environment.get("NVIDIA_VISIBLE_DEVICES", "all") in ("void", "none"):
        return (), ("NVIDIA_VISIBLE_DEVICES: gives no GPU",)
    text = scene.environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return tuple(Device(gpu, gpu.uuid) for gpu in scene.gpus), ()
    if text.strip() in NOTHING:
        return (), ("CUDA_VISIBLE_DEVICES: gives no GPU",)
    found: list[Device] = []
    whole = tuple(Device(gpu, gpu.uuid) for gpu in scene.gpus)
    for word in text.split(","):
        device = _find(scene, whole, word.strip())
        if device is None:  # CUDA too takes what stands before the first that it does not know
            return tuple(found), (f"CUDA_VISIBLE_DEVICES: {word.strip()!r} is no GPU of this host",)
        found.append(device)
    return tuple(found), ()


def choose(scene: Scene, names: Sequence[str], devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the named ones of the devices that we were given; an index counts within these."""
    found: list[Device] = []
    for name in names:
        device = _find(scene, devices, name)
        if device is None:
            raise RefusalError(f"--gpu {name}: is not among the {len(devices)} GPUs that this process was given", 2)
        if device not in found:
            found.append(device)
    return tuple(found)


def _find(scene: Scene, devices: Sequence[Device], word: str) -> Device | None:
    """Return the device that an index, a UUID (its beginning is enough) or a bus id means."""
    if word.isdigit():
        return devices[int(word)] if int(word) < len(devices) else None
    address = _topology.bus_id(word)
    if address is not None:
        return next((one for one in devices if one.gpu.address == address), None)
    if re.match(r"(?i)mig-", word):
        return _instance(scene, devices, word)
    alike = [one for one in devices if len(word) > 4 and (one.uuid or "").lower().startswith(word.lower())]
    return alike[0] if len(alike) == 1 else None


def _instance(scene: Scene, devices: Sequence[Device], word: str) -> Device | None:
    """Return a MIG instance, if it was given itself or its whole GPU was."""
    for uuid, address in scene.instances.items():
        if uuid.lower() == word.lower():
            owners = [one for one in devices if one.gpu.address == address and one.uuid in (uuid, one.gpu.uuid)]
            return Device(owners[0].gpu, uuid) if owners else None
    return None

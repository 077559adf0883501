# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which devices a command is meant for: those named, that of its rank, or all that it was given; never more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Device, RefusalError, Scene

LIST, CONTAINER_LIST = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"
NOTHING = ("", "-1", "none", "void", "NoDevFiles")
WITHHELD = ("none", "void")
# Where launchers say which process of this host one is, and where they say how many there are.
RANKS = (
    ("LOCAL_RANK", ""),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("FLUX_TASK_LOCAL_ID", ""),
    ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
ALONE = re.compile(r"1(\(x\d+\))?")  # Slurm: one task on each of several nodes
OLD_INSTANCE = re.compile(r"(?i)MIG-(GPU-[0-9a-f-]+)/\d+/\d+")  # drivers before 470 name MIG instances by their GPU


def rank(environment: Mapping[str, str]) -> int | None:
    """Return the local rank; None where a process is the only one of its host, or a batch script and no rank."""
    for name, size in RANKS:
        text, many = environment.get(name, ""), environment.get(size, "")
        if not text.isdigit() or ALONE.fullmatch(many) or (name == "SLURM_LOCALID" and not many):
            continue
        return int(text)
    return None


def given(scene: Scene) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the devices that a scheduler or the user left us, and what is amiss; all where nobody did."""
    whole = tuple(Device(gpu, gpu.uuid) for gpu in scene.gpus)
    if scene.environment.get(CONTAINER_LIST, "").strip() in WITHHELD:
        return (), (f"{CONTAINER_LIST}: gives no GPU, so the command runs unbound",)
    text = scene.environment.get(LIST)
    if text is None:
        return whole, ()
    if text.strip() in NOTHING:
        return (), (f"{LIST}: gives no GPU, so the command runs unbound",)
    found: list[Device] = []
    for word in text.split(","):
        devices = match(scene, whole, word.strip())
        if not devices:  # CUDA too takes what stands before the first that it does not know
            return tuple(found), (f"{LIST}: {word.strip()!r} is no GPU that this process may use",)
        found += devices[:1]
    return tuple(found), ()


def choose(scene: Scene, names: Sequence[str], devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return the named ones of the devices that we were given; an index counts within these."""
    found: dict[Device, None] = {}
    for name in names:
        named = match(scene, devices, name)
        if not named:
            among = ", ".join(map(str, devices)) or "none"
            raise RefusalError(f"--gpu {name}: is not among the GPUs that this process was given: {among}", 2)
        found.update(dict.fromkeys(named))
    return tuple(found)


def match(scene: Scene, devices: Sequence[Device], word: str) -> tuple[Device, ...]:
    """Return the devices that an index, a UUID (its beginning is enough) or a bus id means."""
    if word.isdigit():
        return tuple(devices[int(word) : int(word) + 1])
    address = _topology.bus_id(word)
    if address is not None:
        return tuple(one for one in devices if one.gpu.address == address)
    exact = tuple(one for one in devices if (one.uuid or "").lower() == word.lower())
    if exact or word.lower().startswith("mig-"):
        return exact or _instance(scene, devices, word)
    alike = [one for one in devices if len(word) > len("GPU-") and (one.uuid or "").lower().startswith(word.lower())]
    return tuple(alike) if len(alike) == 1 else ()


def _instance(scene: Scene, devices: Sequence[Device], word: str) -> tuple[Device, ...]:
    """Return a MIG instance of a GPU that was given whole."""
    old = OLD_INSTANCE.fullmatch(word)
    for one in devices:
        known = [uuid for uuid, address in scene.instances.items() if address == one.gpu.address]
        named = next((uuid for uuid in known if uuid.lower() == word.lower()), None)
        if old and (one.gpu.uuid or "").lower() == old[1].lower():
            named = word
        if named and not one.instance:
            return (Device(one.gpu, named),)
    return ()

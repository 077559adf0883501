# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at the host: GPUs from sysfs and /proc, their UUIDs, nodes, and what this process may use."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Gpu, Scene

PATIENCE = 5.0  # seconds for nvidia-smi, which hangs where the driver does
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261}
QUERY = ("--query-gpu=pci.bus_id,uuid", "--format=csv,noheader")
MIG = re.compile(r"^(GPU|\s+MIG)\b.*\(UUID:\s*([^)\s]+)\)", re.MULTILINE)


def look(environment: Mapping[str, str], root: str = "/") -> Scene:
    """Return the scene; no question to the driver where sysfs and /proc have the answer."""
    machine = _topology.nodes(root)
    every = _topology.gpus(root)
    devices = [one for one in every if one.vendor == _topology.NVIDIA] or list(every)
    uuids = {one.address: _uuid(root, one.address) for one in devices}
    notes: list[str] = []
    nvidia = bool(devices) and devices[0].vendor == _topology.NVIDIA
    if nvidia and None in uuids.values():
        uuids.update(_ask_uuids(notes))
    gpus = tuple(_gpu(machine, one, number, uuids.get(one.address)) for number, one in enumerate(devices))
    return Scene(
        gpus,
        machine,
        tuple(sorted(os.sched_getaffinity(0))),
        allowed_memory(root) or tuple(node.number for node in machine),
        environment,
        _instances(environment, gpus) if nvidia else {},
        unbindable(),
        tuple(notes),
    )


def _gpu(machine: Sequence[_topology.Node], device: _topology.Device, number: int, uuid: str | None) -> Gpu:
    claims = [("sysfs", device.node), ("local_cpulist", _topology.single_node(machine, device.cpus))]
    place = _topology.place(machine, claims)
    return Gpu(number, device.address, uuid, place, device.cpus, device.vendor == _topology.NVIDIA)


def _uuid(root: str, address: str) -> str | None:
    try:
        with open(f"{root.rstrip('/')}/proc/driver/nvidia/gpus/{address}/information", encoding="utf-8") as stream:
            found = re.search(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)", stream.read())
    except OSError:
        return None
    return found[1] if found else None


def _ask_uuids(notes: list[str]) -> dict[str, str]:
    text = _nvidia_smi(QUERY)
    if text is None:
        notes.append("nvidia-smi: gives no answer, so UUIDs are not known")
        return {}
    rows = (line.split(",") for line in text.splitlines() if line.count(",") == 1)
    return {str(_topology.bus_id(row[0])): row[1].strip() for row in rows if _topology.bus_id(row[0])}


def _instances(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the MIG instances with the addresses of their GPUs, asked for only where one is spoken of."""
    if (
        "mig-"
        not in " ".join((environment.get("CUDA_VISIBLE_DEVICES", ""), environment.get("GPU_RUN_NAMES", ""))).lower()
    ):
        return {}
    found, owner = {}, ""
    addresses = {gpu.uuid: gpu.address for gpu in gpus}
    for kind, uuid in MIG.findall(_nvidia_smi(("-L",)) or ""):
        if kind == "GPU":
            owner = uuid
        elif owner in addresses:
            found[uuid] = addresses[owner]
    return found


def _nvidia_smi(words: Sequence[str]) -> str | None:
    """Return what the tool prints; None where it is missing, fails or hangs (it is then left to itself)."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        child = subprocess.Popen([tool, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None
    try:
        text, _nothing = child.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel is left to itself
            child.communicate(timeout=1)
        return None
    return text if child.returncode == 0 else None


def allowed_memory(root: str = "/") -> tuple[int, ...]:
    """Return the nodes whose memory this process may use."""
    try:
        with open(f"{root.rstrip('/')}/proc/self/status", encoding="utf-8") as stream:
            found = re.search(r"^Mems_allowed_list:\s*(\S+)", stream.read(), re.MULTILINE)
    except OSError:
        return ()
    return _topology.parse_cpus(found[1]) if found else ()


def unbindable() -> str | None:
    """Return why memory cannot be bound: no numactl, or a sandbox that refuses; tried in a child process."""
    if shutil.which("numactl") is None:
        return "numactl not found"
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return None
    pid = os.fork()
    if pid == 0:
        library = ctypes.CDLL(None, use_errno=True)
        failed = library.syscall(ctypes.c_long(number), ctypes.c_long(0), None, ctypes.c_long(0))
        os._exit(min(ctypes.get_errno(), 125) if failed else 0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None if code == 0 else f"set_mempolicy is refused here ({errno.errorcode.get(code, code)})"

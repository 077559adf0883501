# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Look at the host: GPUs from sysfs and the driver's files, their nodes, and what this process may use."""

from __future__ import annotations

import importlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Optional

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _policy
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _programs
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._devices import LIST
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Gpu, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _child
from ansible_collections.gpu_fleet.node.plugins.module_utils._topology import Node

PATIENCE = 5.0  # seconds for nvidia-smi, which hangs where the driver does
QUERY = ("--query-gpu=pci.bus_id,uuid", "--format=csv,noheader,nounits")
# The reader of what the tool prints is taken only where the tool is asked: it would double the time to start.
TABLES = "ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._smi_tables"
DRIVER = "/proc/driver/nvidia/gpus"
INFORMATION = re.compile(r"^(GPU UUID|GPU Excluded|Device Minor):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
LISTED = re.compile(r"^(GPU|\s+MIG)\b.*\(UUID:\s*([^)\s]+)\)", re.MULTILINE)
Named = list[tuple[str, Optional[str]]]  # address and UUID of each GPU
Ask = Callable[..., Optional[str]]


def look(environment: Mapping[str, str], names: Sequence[str], root: str = "/") -> Scene:
    """Return the scene; the tool is asked only what sysfs and the driver's files do not say."""
    lines: list[str] = []
    ask = _tool(lines)
    machine = _topology.nodes(root)
    gpus = _place_unknown(machine, _gpus(root, machine, ask), ask)
    memory = allowed_memory(root) or tuple(node.number for node in machine)
    usable = [node.number for node in machine if node.memory != 0 and node.number in memory]
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    instances = _instances(f"{environment.get(LIST, '')},{','.join(names)}", gpus, ask)
    unbindable = _unbindable(usable) if gpus and len(machine) > 1 else None
    return Scene(gpus, machine, cpus, memory, environment, instances, unbindable, obstacles=tuple(lines))


def gone(libraries: Sequence[str], root: str = "/") -> tuple[str, ...]:
    """Return the libraries that this process cannot read; `$LIB` and bare names are the loader's to find."""
    paths = [word for word in libraries if word.startswith("/") and "$" not in word]
    return tuple(word for word in paths if not os.access(f"{root.rstrip('/')}{word}", os.R_OK))


def _tool(lines: list[str]) -> Ask:
    """Return a way to ask nvidia-smi: None where it is missing, fails or hangs, and it may hang only once."""
    until = time.monotonic() + PATIENCE
    path = _programs.find("nvidia-smi")

    def ask(*words: str) -> str | None:
        if path is None or lines:
            return None
        done = _child.command((path, *words), until)
        if done.status == "timeout":
            lines.append(f"nvidia-smi: gives no answer within {PATIENCE:.0f} s")
        return done.output if done.code == 0 else None

    return ask


def _gpus(root: str, machine: Sequence[Node], ask: Ask) -> tuple[Gpu, ...]:
    """Return the GPUs that this process may open."""
    devices = {one.address: one for one in _topology.gpus(root) if one.vendor == _topology.NVIDIA}
    named = _by_driver(root)
    if named is None and devices:
        named = _by_tool(ask) or [(address, None) for address in devices]
    return tuple(_gpu(machine, number, *one, devices.get(one[0])) for number, one in enumerate(named or []))


def _gpu(
    machine: Sequence[Node], number: int, address: str, uuid: str | None, device: _topology.Device | None = None
) -> Gpu:
    cpus = device.cpus if device else ()
    claims = [("sysfs", device.node if device else None), ("local_cpulist", _topology.single_node(machine, cpus))]
    return Gpu(number, address, uuid, _topology.place(machine, claims), cpus)


def _by_driver(root: str) -> Named | None:
    """Return what the driver's files list and this process may open; None where there are none."""
    folder = f"{root.rstrip('/')}{DRIVER}"
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    found = []
    for name in names:
        address = _topology.bus_id(name)
        told = dict(INFORMATION.findall(_text(f"{folder}/{name}/information")))
        if address and told.get("GPU Excluded") != "Yes" and _may_open(root, told.get("Device Minor", "")):
            uuid = told.get("GPU UUID", "?")
            found.append((address, None if "?" in uuid else uuid))
    return sorted(found)


def _may_open(root: str, minor: str) -> bool:
    """Tell whether the device file can be opened; asking does not wake the GPU, and a control group has its say."""
    return not minor.isdigit() or os.access(f"{root.rstrip('/')}/dev/nvidia{minor}", os.R_OK | os.W_OK)


def _by_tool(ask: Ask) -> Named:
    text = ask(*QUERY)
    rows = _tables().parse_query(text, ["uuid"]) if text else []
    return [(address, figures["uuid"].value) for address, figures in rows if address and "uuid" in figures]


def _place_unknown(machine: Sequence[Node], gpus: tuple[Gpu, ...], ask: Ask) -> tuple[Gpu, ...]:
    """Let the driver say the node where sysfs does not; it knows its own GPUs by their index."""
    if len(machine) < 2 or all(gpu.place.node is not None for gpu in gpus):
        return gpus
    text = ask("topo", "-m")
    rows = _tables().parse_topology(text) if text else {}
    return tuple(_place_by_tool(machine, gpu, rows.get(gpu.index)) for gpu in gpus)


def _place_by_tool(machine: Sequence[Node], gpu: Gpu, row: Any) -> Gpu:
    if gpu.place.node is not None or row is None or len(row.nodes) != 1:
        return gpu
    return replace(gpu, place=_topology.place(machine, [("nvidia-smi", row.nodes[0])]))


def _tables() -> Any:
    return importlib.import_module(TABLES)


def _instances(spoken_of: str, gpus: Sequence[Gpu], ask: Ask) -> dict[str, str]:
    """Return the MIG instances with the addresses of their GPUs, asked for only where one is spoken of."""
    if "mig-" not in spoken_of.lower():
        return {}
    found, owner = {}, ""
    addresses = {gpu.uuid: gpu.address for gpu in gpus}
    for kind, uuid in LISTED.findall(ask("-L") or ""):
        if kind == "GPU":
            owner = uuid
        elif owner in addresses:
            found[uuid] = addresses[owner]
    return found


def allowed_memory(root: str = "/") -> tuple[int, ...]:
    """Return the nodes whose memory this process may use."""
    found = re.search(r"^Mems_allowed_list:\s*(\S+)", _text(f"{root.rstrip('/')}/proc/self/status"), re.MULTILINE)
    return _topology.parse_cpus(found[1]) if found else ()


def _unbindable(usable: Sequence[int]) -> str | None:
    """Return why memory cannot be bound: numactl is tried, since it does not run the command where it is refused."""
    if _programs.find("numactl") is None:
        return "numactl not found"
    until = time.monotonic() + PATIENCE
    tried = _child.command(("numactl", f"--preferred={usable[0] if usable else 0}", "--", "true"), until)
    if tried.code == 0:
        return None
    answer = _child.call(_policy.allowed, until)  # in a child: it would reset a policy that we were given
    reason = json.loads(answer.output)[1] if answer.code == 0 else None
    return str(reason or f"numactl: {(tried.errors.strip().splitlines() or ['no answer'])[-1]}")


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the nvidia-smi tool, one question after the other under the same deadline, and understand its complaints."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _smi_tables, _smi_xml
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import LOST, Figure, absent
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _child, _process

QUERY = ("-q", "-x")
SHELL_LACKS = 127
LIBRARY = re.compile(r"NVML library version:\s*(\d+(?:\.\d+)*)")
# What the tool says, as the state it stands for; the first that is found counts.
COMPLAINTS = (
    ("version_mismatch", re.compile(r"Driver/library version mismatch")),
    ("driver_not_loaded", re.compile(r"couldn't communicate with the NVIDIA driver|Driver Not Loaded")),
    ("no_library", re.compile(r"couldn't find libnvidia-ml|libnvidia-ml\.so\S*: cannot open")),
    ("gpu_lost", re.compile(r"GPU is lost|fallen off the bus|Unable to determine the device handle")),
    ("permission", re.compile(r"Insufficient Permissions|Permission denied")),
    ("no_gpu", re.compile(r"No devices were found")),
)
LOST_GPU = re.compile(r"GPU\s*([0-9a-fA-F]+:[0-9a-fA-F:.]+)")  # "for GPU0000:3B:00.0: GPU is lost."
Ask = Callable[..., _child.Result]
Row = tuple[Optional[str], dict[str, Figure]]  # the address of a GPU and its figures


@dataclass
class Answer:
    """What nvidia-smi told, or how it failed."""

    state: str  # ok, absent, timeout, driver_error, or one of COMPLAINTS
    detail: str | None = None
    command: str = ""
    driver: str | None = None
    library: str | None = None
    cuda: str | None = None
    gpus: list[Row] = field(default_factory=list)
    nodes: dict[str | None, Sequence[int]] = field(default_factory=dict)  # near to a GPU, by its address
    left: tuple[_process.Process, ...] = ()


def gather(until: float, several_nodes: bool) -> Answer:
    """Return what the tool tells; `several_nodes` asks it for NUMA nodes too."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Answer("absent", "nvidia-smi is not installed")

    def ask(*words: str) -> _child.Result:
        return _child.command((tool, *words), until)

    first = ask(*QUERY)
    document = _smi_xml.parse(first.output) if first.status == "ended" else None
    answer = judge(first, f"{tool} {' '.join(QUERY)}", document)
    if document is not None:
        answer.driver, answer.cuda = document["driver"], document["cuda"]
        answer.gpus = document["gpus"]
    if answer.state in ("ok", "driver_error"):
        _complete(answer, ask, tool)
    for _address, figures in answer.gpus:
        figures.update(_smi_xml.memory(figures))
    if answer.state == "ok" and answer.gpus:
        _extend(answer, ask, tool, several_nodes)
    return answer


def judge(result: _child.Result, command: str, document: Any = None) -> Answer:
    """Return the state that one call of the tool stands for."""
    if result.status == "timeout":
        return Answer("timeout", f"{command}: did not return", command, left=result.left)
    said = f"{result.output}\n{result.errors}"
    if document is not None:
        return Answer("ok", None, command)
    if result.code == SHELL_LACKS and not result.output:
        return Answer("absent", result.errors.strip(), command)
    library = LIBRARY.search(said)
    for state, pattern in COMPLAINTS:
        if pattern.search(said):
            lost = _lost_gpus(said) if state == "gpu_lost" else []
            return Answer(state, _sentence(said), command, library=library[1] if library else None, gpus=lost)
    return Answer("driver_error", _sentence(said) or f"exit status {result.code} and nothing else", command)


def _lost_gpus(said: str) -> list[Row]:
    addresses = (_topology.bus_id(word.rstrip(":.")) for word in LOST_GPU.findall(said))
    return [(address, {"index": absent(LOST[0])}) for address in addresses if address]


def _sentence(said: str) -> str:
    """Return the first lines of a complaint as one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("<")]
    return " ".join(lines[:3])[:300]


def _complete(answer: Answer, ask: Ask, tool: str) -> None:
    """Ask the plain table for what the document lacks: an index for each GPU, figures it does not have, lost GPUs."""
    known = [set(figures) for _address, figures in answer.gpus]
    lacking = [name for name in _smi_tables.FIELDS if not known or any(name not in one for one in known)]
    names, refused = lacking, []
    for _attempt in range(len(_smi_tables.FIELDS) + 1):  # one field is refused at a time
        fields = ",".join(("pci.bus_id", *(_smi_tables.FIELDS[name] for name in names)))
        words = (f"--query-gpu={fields}", "--format=csv,noheader,nounits")
        result = ask(*words)
        field_name = _smi_tables.refused_field(result.output + result.errors)
        if field_name is None:
            break
        named = [name for name in names if _smi_tables.FIELDS[name] == field_name]
        if not named:
            break
        refused += named
        names = [name for name in names if name not in named]
    if result.status == "timeout":
        _be_late(answer, f"{tool} {words[0]}", result)
        return
    rows = _smi_tables.parse_query(result.output, names)
    if rows and answer.state == "driver_error":
        answer.state, answer.detail = "ok", None
    unknown = {name: absent("not a field of this nvidia-smi") for name in refused}
    answer.gpus = _join(answer.gpus, [(address, {**figures, **unknown}) for address, figures in rows])


def _be_late(answer: Answer, command: str, result: _child.Result) -> None:
    answer.state, answer.detail = "timeout", f"{command}: did not return"
    answer.command, answer.left = command, result.left


def _join(document: list[Row], rows: list[Row]) -> list[Row]:
    """Join both lists by address; the document's figure goes first, a row alone is a GPU too."""
    by_address = {address: figures for address, figures in rows if address}
    joined = [(address, {**by_address.get(address or "", {}), **figures}) for address, figures in document]
    documented = [address for address, _figures in document]
    return joined + [row for row in rows if row[0] is None or row[0] not in documented]


def _extend(answer: Answer, ask: Ask, tool: str, several_nodes: bool) -> None:
    """Ask for NVLink, and where there are several nodes for the nodes; what fails leaves its figures unknown."""
    questions = [("nvlink", "--status"), *([("topo", "-m")] if several_nodes else [])]
    for words in questions:
        result = ask(*words)
        if result.status == "timeout":
            _be_late(answer, f"{tool} {' '.join(words)}", result)
            return
        if words[0] == "nvlink":
            _add_links(answer, result)
        else:
            _add_nodes(answer, result)


def _add_nodes(answer: Answer, result: _child.Result) -> None:
    rows = _smi_tables.parse_topology(result.output) if result.code == 0 else {}
    for address, figures in answer.gpus:
        row = rows.get(figures.get("index", absent("not reported")).value)
        if row:
            figures.update(memory_node=row.memory_node, local_cpus=row.local_cpus)
            answer.nodes[address] = row.nodes


def _add_links(answer: Answer, result: _child.Result) -> None:
    links = _smi_tables.parse_links(result.output) if result.code == 0 else {}
    none = absent("no link reported" if result.code == 0 else "nvidia-smi nvlink failed")
    for _address, figures in answer.gpus:
        figures.update(links.get(figures.get("uuid", none).value, {"nvlink.active": none, "nvlink.inactive": none}))

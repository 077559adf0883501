# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what nvidia-smi prints as tables: `--query-gpu`, `topo -m`, `nvlink --status`: pure, text in and figures out."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu._figures import (
    MIB,
    Figure,
    absent,
    number,
    switch,
    word,
)

# The field of --query-gpu for each figure that it has. Sizes come in MiB, `nounits` leaves the word out.
FIELDS = {
    "index": "index",
    "uuid": "uuid",
    "name": "name",
    "compute_capability": "compute_cap",
    "memory.total": "memory.total",
    "memory.used": "memory.used",
    "memory.reserved": "memory.reserved",
    "memory.free": "memory.free",
    "mig.enabled": "mig.mode.current",
    "mig.pending": "mig.mode.pending",
    "ecc.enabled": "ecc.mode.current",
    "ecc.pending": "ecc.mode.pending",
    "ecc.volatile_corrected": "ecc.errors.corrected.volatile.total",
    "ecc.volatile_uncorrected": "ecc.errors.uncorrected.volatile.total",
    "ecc.aggregate_corrected": "ecc.errors.corrected.aggregate.total",
    "ecc.aggregate_uncorrected": "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.single_bit": "retired_pages.single_bit_ecc.count",
    "retired_pages.double_bit": "retired_pages.double_bit.count",
    "retired_pages.pending": "retired_pages.pending",
    "pcie.generation": "pcie.link.gen.current",
    "pcie.generation_max": "pcie.link.gen.max",
    "pcie.width": "pcie.link.width.current",
    "pcie.width_max": "pcie.link.width.max",
    "clocks.graphics": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.memory": "clocks.current.memory",
    "clocks.graphics_max": "clocks.max.graphics",
    "clocks.sm_max": "clocks.max.sm",
    "clocks.memory_max": "clocks.max.memory",
    "power.draw": "power.draw",
    "power.limit": "enforced.power.limit",
    "temperature.gpu": "temperature.gpu",
    "temperature.memory": "temperature.memory",
    "utilization.gpu": "utilization.gpu",
    "utilization.memory": "utilization.memory",
    "persistence": "persistence_mode",
    "compute_mode": "compute_mode",
}
SWITCHES = ("mig.enabled", "mig.pending", "ecc.enabled", "ecc.pending", "retired_pages.pending", "persistence")
WORDS = ("uuid", "name", "compute_capability", "compute_mode")
REFUSED = re.compile(r'Field "([^"]+)" is not a valid field to query')
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
NODE_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
LINK_HEAD = re.compile(r"GPU (\d+): .*\(UUID: (\S+)\)")
LINK_LINE = re.compile(r"Link (\d+): (.*)")


@dataclass(frozen=True)
class Near:
    """What is near to a GPU: CPUs and the node of its own memory as figures, and the host's nodes."""

    local_cpus: Figure
    memory_node: Figure
    nodes: tuple[int, ...]


def parse_query(content: str, names: list[str]) -> list[tuple[str | None, dict[str, Figure]]]:
    """Read rows of `pci.bus_id` and then the figures `names`; a row that is cut short loses its end, not its start."""
    rows = []
    for cells in csv.reader(content.splitlines(), skipinitialspace=True):
        address = _topology.bus_id(cells[0].strip()) if cells else None
        if address is None and "[" not in (cells[0] if cells else ""):
            continue
        figures = {name: _figure(name, cell) for name, cell in zip(names, cells[1:])}
        rows.append((address, figures))
    return rows


def _figure(name: str, cell: str) -> Figure:
    if name in WORDS:
        return word(cell)
    if name in SWITCHES:
        return switch(cell)
    found = number(cell)
    if name.startswith("memory.") and found.value is not None and cell.strip().isdigit():
        return Figure(found.value * MIB) if found.value or name != "memory.total" else absent("the driver says 0")
    return found


def refused_field(content: str) -> str | None:
    """Return the field that this version of the tool does not know."""
    found = REFUSED.search(content)
    return found[1] if found else None


def parse_topology(content: str) -> dict[int, Near]:
    """Read the table of `topo -m` by GPU index; between tabs the columns are as wide as their words."""
    lines = [ESCAPES.sub("", line) for line in content.splitlines()]
    head = next((line for line in lines if "CPU Affinity" in line), "")
    columns = [name for name in NODE_COLUMNS if name in head]
    found = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t") if cell.strip()]
        gpu = re.fullmatch(r"GPU(\d+)", cells[0]) if cells else None
        if gpu and columns and len(cells) > len(columns):
            found[int(gpu[1])] = _near(dict(zip(columns, cells[-len(columns) :])))
    return found


def _near(cells: dict[str, str]) -> Near:
    cpus = _topology.format_cpus(_topology.parse_cpus(cells["CPU Affinity"]))
    node = cells.get("GPU NUMA ID", "")
    return Near(
        Figure(cpus) if cpus else absent("not reported"),
        Figure(int(node)) if node.isdigit() else absent("not available"),
        _topology.parse_cpus(cells.get("NUMA Affinity")),
    )


def parse_links(content: str) -> dict[str, dict[str, Figure]]:
    """Read `nvlink --status`: the links of each GPU by its UUID; nothing is printed for one without links."""
    found: dict[str, dict[int, bool]] = {}
    current = ""
    for line in content.splitlines():
        head = LINK_HEAD.search(line)
        link = LINK_LINE.search(line)
        if head:
            current = head[2]
        elif link and current:
            found.setdefault(current, {})[int(link[1])] = "inactive" not in link[2].lower()
    return {
        uuid: {
            "nvlink.active": Figure(sum(states.values())),
            "nvlink.inactive": Figure([number for number, active in sorted(states.items()) if not active]),
        }
        for uuid, states in found.items()
    }

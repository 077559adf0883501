# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things sit: bus ids (F20), lists of CPUs, nodes without CPUs (F18), nodes that nobody knows (F17)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._topology import Node, Place

NODES, DEVICES = _topology.NODES.lstrip("/"), _topology.DEVICES.lstrip("/")
SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"


def put(root: Path, files: dict[str, str]) -> None:
    """Write files below the root."""
    for path, content in files.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content)


def plug(root: Path, way: str, files: dict[str, str]) -> None:
    """Put a PCI function at the end of a way of bridges, linked as sysfs does."""
    name = way.rpartition("/")[2]
    put(root, {f"sys/devices/{way}/{key}": f"{value}\n" for key, value in files.items()})
    link = root / DEVICES / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../../devices/{way}")


def grace(root: Path) -> tuple[Node, ...]:
    """Build F18: two nodes with CPUs, 32 without, four of them with a GPU's memory."""
    number_of = 34
    for number in range(number_of):
        near = [10 if other == number else 80 for other in range(number_of)]
        home = {0: 0, 1: 1}.get(number, int(number >= 18))
        near[home] = 40 if number > 1 else near[home]
        put(
            root,
            {
                f"{NODES}/node{number}/cpulist": {0: "0-71\n", 1: "72-143\n"}.get(number, "\n"),
                f"{NODES}/node{number}/meminfo": f"Node {number} MemTotal:       {1024 * (number < 3)} kB\n",
                f"{NODES}/node{number}/distance": " ".join(map(str, near)) + "\n",
            },
        )
    return _topology.nodes(str(root))


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("00000000:9F:00.0", "0000:9f:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("0:3b:0", "0000:3b:00.0"),
        ("0000:3b:00", "0000:3b:00.0"),
        (b"00000000:9F:00.1", "0000:9f:00.1"),
        (" 0000:9f:00.0\n", "0000:9f:00.0"),
        ("GPU-12345678", None),
        ("0000:9f:00.9", None),
        ("", None),
        (None, None),
    ],
)
def test_a_bus_id_has_one_spelling(spelling: str | bytes | None, expected: str | None) -> None:
    assert _topology.bus_id(spelling) == expected


@pytest.mark.parametrize(
    ("spelling", "numbers"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("0", (0,)),
        ("8 0-1\n", (0, 1, 8)),
        ("", ()),
        ("\n", ()),
        (None, ()),
        ("N/A", ()),
        ("-1", ()),
        ("3-", ()),
    ],
)
def test_a_list_of_cpus_is_read(spelling: str | None, numbers: tuple[int, ...]) -> None:
    assert _topology.parse_cpus(spelling) == numbers


@pytest.mark.parametrize("spelling", ["", "0", "0-1", "0-3,8", "0,2,4", "0-31,64-95"])
def test_a_list_of_cpus_is_written_as_it_was_read(spelling: str) -> None:
    assert _topology.format_cpus(_topology.parse_cpus(spelling)) == spelling


def test_nodes_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    machine = grace(tmp_path)
    assert [node.number for node in machine] == list(range(34))
    assert [node.number for node in machine if node.cpus] == [0, 1]
    assert machine[1].cpus == tuple(range(72, 144))
    assert machine[0].memory == 1024 * 1024 and machine[10].memory == 0
    assert dict(machine[18].distances)[1] == 40


def test_a_kernel_without_numa_has_no_nodes(tmp_path: Path) -> None:
    assert _topology.nodes(str(tmp_path)) == ()
    assert _topology.place((), [("sysfs", None)]) == Place(None, "this kernel has no NUMA nodes")
    assert _topology.place((), [("sysfs", 1)]) == Place(1, "sysfs")


def test_a_node_without_cpus_stands_for_the_nearest_that_has_some(tmp_path: Path) -> None:
    machine = grace(tmp_path)
    assert [_topology.nearest_with_cpus(machine, number) for number in (0, 1, 2, 10, 18, 26, 99)] == [
        *(0, 1, 0, 0, 1, 1),
        None,
    ]
    assert _topology.place(machine, [("NVML", 18)]) == Place(1, "NVML, nearest node with CPUs")
    assert _topology.place(machine, [("sysfs", 0), ("NVML", 18)]) == Place(0, "sysfs")


def test_two_nodes_as_near_are_no_answer() -> None:
    machine = (Node(0, (0,), None, ()), Node(1, (1,), None, ()), Node(2, (), None, ((0, 20), (1, 20), (2, 10))))
    assert _topology.nearest_with_cpus(machine, 2) is None
    assert _topology.place(machine, [("NVML", 2)]).node is None


def test_minus_one_is_no_node_and_a_single_node_is_the_answer() -> None:
    one = (Node(0, tuple(range(64)), None, ()),)
    two = (Node(0, tuple(range(32)), None, ()), Node(1, tuple(range(32, 64)), None, ()))
    assert _topology.place(one, [("sysfs", -1)]) == Place(0, "only node")
    assert _topology.place(two, [("sysfs", -1)]) == Place(None, "no source knows the node")
    assert _topology.place(two, [("sysfs", None), ("NVML", 1)]) == Place(1, "NVML")


def test_cpus_name_a_node_only_where_there_is_a_choice() -> None:
    one = (Node(0, (0, 1), None, ()),)
    two = (*one, Node(1, (2, 3), None, ()))
    assert _topology.single_node(one, (0, 1)) is None
    assert _topology.single_node(two, (2,)) == 1
    assert _topology.single_node(two, (1, 2)) is None
    assert _topology.single_node(two, ()) is None


def test_gpus_are_found_by_class_and_maker(tmp_path: Path) -> None:
    card = {"class": "0x030200", "vendor": "0x10de", "numa_node": "1", "local_cpulist": "32-63"}
    plug(tmp_path, f"{SWITCH}/0000:02:00.0/0000:03:00.0", card)
    plug(tmp_path, "pci0000:80/0000:80:01.0", {**card, "class": "0x120000", "vendor": "0x1002", "numa_node": "-1"})
    plug(tmp_path, "pci0000:00/0000:00:03.0", {**card, "class": "0x040300"})  # its sound
    plug(tmp_path, "pci0000:00/0000:00:04.0", {**card, "vendor": "0x1a03"})  # the board's own display
    (tmp_path / DEVICES / "0000:03:00.0/driver").symlink_to("../../../bus/pci/drivers/nvidia")
    nvidia, amd = _topology.gpus(str(tmp_path))
    assert (nvidia.address, nvidia.vendor, nvidia.driver) == ("0000:03:00.0", _topology.NVIDIA, "nvidia")
    assert (nvidia.node, _topology.format_cpus(nvidia.cpus)) == (1, "32-63")
    assert nvidia.branch == ("pci0000:00", "0000:00:01.0", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")
    assert (amd.address, amd.driver, amd.node) == ("0000:80:01.0", None, None)


def test_a_device_that_says_nothing_is_no_failure(tmp_path: Path) -> None:
    assert _topology.gpus(str(tmp_path)) == ()
    plug(tmp_path, "pci0001:00/0001:00:00.0", {"class": "0x030200", "vendor": "0x10de"})
    (device,) = _topology.gpus(str(tmp_path))
    assert (device.address, device.node, device.cpus, device.driver) == ("0001:00:00.0", None, (), None)


@pytest.mark.parametrize(
    ("other", "same_node", "expected"),
    [
        (f"{SWITCH}/0000:02:01.0/0000:04:00.0", True, "PIX"),
        (f"{SWITCH}/0000:02:01.0/0000:04:00.0/0000:05:00.0/0000:06:00.0", True, "PXB"),
        ("pci0000:00/0000:00:02.0/0000:07:00.0", True, "PHB"),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", True, "NODE"),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", False, "SYS"),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", None, "unknown"),
    ],
)
def test_nearness(other: str, same_node: bool | None, expected: str) -> None:
    gpu = f"{SWITCH}/0000:02:00.0/0000:03:00.0".split("/")
    assert _topology.nearness(gpu, other.split("/"), same_node) == expected
    assert _topology.nearness(other.split("/"), gpu, same_node) == expected


def test_it_stands_on_the_standard_library_alone() -> None:
    code = f"import runpy, sys; runpy.run_path({_topology.__file__!r}); sys.exit('ansible_collections' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", code], check=False).returncode == 0

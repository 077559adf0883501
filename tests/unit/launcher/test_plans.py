# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of gpu-run: machines of all kinds as folders of sysfs, options and surroundings in, plans out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _options, _plan, _scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Plan, Scene

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "plans.yml").read_text())


def uuid(number: int) -> str:
    return f"GPU-{number}0000000-0000-0000-0000-000000000000"


def put(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")


def build(root: Path, machine: dict[str, Any]) -> list[str]:
    """Write the machine as the kernel shows it; return the addresses of the GPUs."""
    for number, node in machine["nodes"].items():
        folder = f"sys/devices/system/node/node{number}"
        distances = node.get("distances") or [10 if other == number else 21 for other in machine["nodes"]]
        memory = f"Node {number} MemTotal: {node.get('memory', 1024) * 1024} kB"
        files = {"cpulist": node["cpus"], "distance": " ".join(map(str, distances)), "meminfo": memory}
        put(root, {f"{folder}/{name}": text for name, text in files.items()})
    addresses = []
    for number, gpu in enumerate(machine["gpus"]):
        address = gpu.get("address", f"0000:{number}0:00.0")
        folder = f"sys/bus/pci/devices/{address}"
        cpus = gpu.get("cpus") or machine["nodes"].get(gpu["node"], {"cpus": ""})["cpus"]
        files = {"class": "0x030200", "vendor": "0x10de", "numa_node": str(gpu["node"]), "local_cpulist": cpus}
        put(root, {f"{folder}/{name}": text for name, text in files.items()})
        if gpu.get("uuid") != "":
            put(root, {f"proc/driver/nvidia/gpus/{address}/information": f"GPU UUID: \t {uuid(number)}"})
        addresses.append(address)
    return addresses


def scene(root: Path, case: dict[str, Any]) -> Scene:
    """Look at the machine of a case; what the tester's own process may use is replaced."""
    addresses = build(root, case["machine"])
    found = _scene.look(case.get("environment", {}), str(root))
    allowed = case.get("allowed", {})
    nodes = [str(number) for number in case["machine"]["nodes"]]
    return replace(
        found,
        cpus=_topology.parse_cpus(allowed.get("cpus", "0-7")),
        memory=_topology.parse_cpus(allowed.get("memory", ",".join(nodes))),
        unbindable=case.get("unbindable"),
        instances={name: addresses[number] for name, number in case.get("instances", {}).items()},
        notes=(),
    )


def brief(made: Plan, found: Scene) -> dict[str, Any]:
    """Return a plan the way the cases have it."""
    shown = made.show()
    given = dict(made.environment)
    answer = {"cpus": shown["cpus"], "memory": shown["memory"]["mode"], "nodes": shown["memory"]["nodes"]}
    answer["gpus"] = [one["index"] for one in shown["gpus"]]
    answer["list"] = given.pop("CUDA_VISIBLE_DEVICES", None)
    given.pop("CUDA_DEVICE_ORDER", None)
    answer["set"] = given
    answer["uuids"] = [one["uuid"] for one in shown["gpus"]]
    return answer


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_plan(tmp_path: Path, case: dict[str, Any]) -> None:
    found = scene(tmp_path, case)
    defaults = _options.Defaults("", case.get("defaults", {}))
    for words in [case.get("options", []), *case.get("also", [])]:
        options = _options.parse([*words, "--", "job"])
        if "refused" in case:
            with pytest.raises(_options.RefusalError, match=case["refused"]) as refusal:
                _plan.plan(options, defaults, found)
            assert refusal.value.status == 2
            continue
        made = _plan.plan(options, defaults, found)
        expected = {"gpus": [], "nodes": None, "list": None, "set": {}, **case["plan"]}
        if "visible" in expected:
            expected["list"] = ",".join(uuid(number) for number in expected.pop("visible"))
        shown = brief(made, found)
        assert {name: shown[name] for name in expected} == expected
        notes = case.get("notes", [])
        assert len(made.notes) == len(notes) and all(part in note for part, note in zip(notes, made.notes)), made.notes
        assert all((one["numa_node"] or 0) >= 0 for one in made.show()["gpus"])

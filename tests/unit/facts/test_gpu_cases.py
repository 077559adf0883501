# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU facts by cases: a machine, a library and a tool in, figures out.

A case has `pci` (functions, see `Machine.plug`), `nodes`, `files`, `nvml` and `smi` (what the stand-ins answer; without
them there are none), `binding` (`old`, `new`, `newest`), `expected_count`, and `facts`: dotted names with `*` for all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpu_fleet.node.plugins.module_utils import _topology

from .conftest import Machine

CASES = Path(__file__).parent / "cases"


def cases() -> list[Any]:
    """Return every case of every file."""
    files = [(path.stem, yaml.safe_load(path.read_text())) for path in sorted(CASES.glob("gpu_*.yml"))]
    return [pytest.param(case, id=f"{stem}: {case['name']}") for stem, rows in files for case in rows]


def look_up(facts: Any, name: str) -> Any:
    """Return what stands under a dotted name; a key may itself have dots."""
    if not name:
        return facts
    head, _dot, rest = name.partition(".")
    if isinstance(facts, list):
        return [look_up(one, rest) for one in facts] if head == "*" else look_up(facts[int(head)], rest)
    if name in facts:
        return facts[name]
    return look_up(facts[head], rest)


def check(facts: Any) -> None:
    """See that each null has its reason and each figure its source, in whatever state."""
    for gpu in facts["gpus"]:
        for name in (*gpu["sources"], *gpu["reasons"]):
            assert (look_up(gpu, name) is None) == (name in gpu["reasons"]), name
            assert name not in gpu["sources"] or gpu["sources"][name]
        assert gpu["numa_node"] is None or gpu["numa_node"] >= 0
    assert (facts["state"] == "ok") == (facts["action"] is None)
    assert facts["left_behind"] == []
    assert facts["duration"] < 10


@pytest.mark.parametrize("case", cases())
def test_case(case: dict[str, Any], machine: Machine, request: pytest.FixtureRequest) -> None:
    if "nvml" in case:
        interpreters: Callable[[str], Path] = request.getfixturevalue("interpreters")
        machine.library, machine.python = request.getfixturevalue("library"), interpreters(case.get("binding", "new"))
        machine.nvml(case["nvml"])
    machine.plug(case.get("pci", []))
    for row in case.get("nodes", []):
        machine.nodes([{**row, "number": number} for number in _topology.parse_cpus(row["numbers"])])
    machine.put(case.get("files", {}))
    machine.smi(case.get("smi"))
    facts = machine.gather(expected=case.get("expected_count"))
    found = {name: look_up(facts, name) for name in case["facts"]}
    assert found == case["facts"]
    check(facts)

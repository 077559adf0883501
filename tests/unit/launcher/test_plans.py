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
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _defaults, _options, _plan, _scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._defaults import Defaults
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Plan, RefusalError, Scene

from .host import build, put, stand_in, uuid

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "plans.yml").read_text())
TOOL = 'case "$1" in topo) file=topo;; -L) file=list;; *) file=query;; esac\ncat "{0}/$file" 2>/dev/null || exit 9'


def scene(folder: Path, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Look at the machine of a case; what the tester's own process may use is replaced."""
    root, tools = folder / "root", folder / "tools"
    addresses = build(root, case["machine"])
    if "tool" in case:
        stand_in(tools, "nvidia-smi", TOOL.format(tools))
        for name, text in case["tool"].items():
            (tools / name).write_text(text)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr(_scene, "_unbindable", lambda _usable: case.get("unbindable"))
    names = [word for words in (case.get("options", []), *case.get("also", [])) for word in words]
    found = _scene.look(case.get("environment", {}), names, str(root))
    allowed = case.get("allowed", {})
    nodes = ",".join(str(number) for number in case["machine"]["nodes"])
    put(root, dict.fromkeys(case.get("files", []), ""))
    preloads = _defaults.preloads(Defaults(case.get("defaults", {})))
    more = {name: addresses[number] for name, number in case.get("instances", {}).items()}
    return replace(
        found,
        cpus=_topology.parse_cpus(allowed.get("cpus", "0-143")),
        memory=_topology.parse_cpus(str(allowed.get("memory", nodes))),
        instances={**found.instances, **more},
        gone=_scene.gone(preloads, str(root)),
    )


def brief(made: Plan) -> dict[str, Any]:
    """Return a plan the way the cases have it."""
    shown = made.show()
    given = dict(made.environment)
    answer = {"cpus": shown["cpus"], "memory": shown["memory"]["mode"], "nodes": shown["memory"]["nodes"]}
    answer["gpus"] = [one["index"] for one in shown["gpus"]]
    answer["list"] = given.pop("CUDA_VISIBLE_DEVICES", None)
    given.pop("CUDA_DEVICE_ORDER", None)
    return {**answer, "set": given, "uuids": [one["uuid"] for one in shown["gpus"]]}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_plan(tmp_path: Path, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = scene(tmp_path, case, monkeypatch)
    defaults = Defaults(case.get("defaults", {}))
    for words in [case.get("options", []), *case.get("also", [])]:
        options = _options.parse([*words, "--", "job"])
        if "refused" in case:
            with pytest.raises(RefusalError) as refusal:
                _plan.plan(options, defaults, found)
            assert case["refused"] in str(refusal.value) and refusal.value.status == 2
            continue
        made = _plan.plan(options, defaults, found)
        expected = {"gpus": [], "nodes": None, "list": None, "set": {}, **case["plan"]}
        if "visible" in expected:
            expected["list"] = ",".join(uuid(number) for number in expected.pop("visible"))
        shown = brief(made)
        assert {name: shown[name] for name in expected} == expected
        assert all((one["numa_node"] or 0) >= 0 for one in made.show()["gpus"])
        for kind, lines in (("obstacles", made.obstacles), ("remarks", made.remarks)):
            parts = case.get(kind, [])
            assert len(lines) == len(parts) and all(part in line for part, line in zip(parts, lines)), lines


def test_the_plan_of_this_machine() -> None:
    found = _scene.look({"CUDA_VISIBLE_DEVICES": ""}, ())
    assert _plan.plan(_options.Options(("job",)), Defaults(), found).cpus == ()


def test_what_a_driver_really_writes(tmp_path: Path) -> None:
    build(tmp_path, {"nodes": {0: {"cpus": "0-7"}}, "gpus": [{"node": 0}]})
    recorded = Path(__file__).parents[1] / "data" / "recordings" / "h200-580.159.04" / "proc-driver-gpu-information.txt"
    information = tmp_path / "proc/driver/nvidia/gpus/0000:00:00.0/information"
    information.write_text(recorded.read_text())
    told = dict(line.split(":", 1) for line in recorded.read_text().splitlines() if ":" in line)
    assert [gpu.uuid for gpu in _scene.look({}, (), str(tmp_path)).gpus] == [told["GPU UUID"].strip()]
    (tmp_path / "dev" / f"nvidia{told['Device Minor'].strip()}").unlink()
    assert _scene.look({}, (), str(tmp_path)).gpus == ()

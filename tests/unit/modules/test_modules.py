# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module files themselves, run as Ansible runs them: arguments in, one JSON object out, whatever happens."""

from __future__ import annotations

import ast
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..machine import build, picture

MODULES = Path(__file__).resolve().parents[3] / "plugins" / "modules"
SETS = [
    {"name": "memory", "sysctl": [{"key": "vm.swappiness", "value": "10"}]},
    {"name": "pages", "sysfs": [{"path": "/sys/kernel/mm/transparent_hugepage/enabled", "value": "madvise"}]},
]


def run(name: str, **arguments: Any) -> dict[str, Any]:
    """Run a module with these arguments; the answer must be the one object that Ansible expects."""
    path = os.pathsep.join(str(Path(place).parent) for place in sys.modules["ansible_collections"].__path__)
    done = subprocess.run(
        [sys.executable, str(MODULES / f"{name}.py")],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip(), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer.get("failed", False) == (done.returncode != 0)
    assert "Traceback" not in done.stdout + done.stderr
    return answer


def test_an_image_through_its_whole_life(tmp_path: Path) -> None:
    host = build(tmp_path)
    first, options = picture(host), {"sets": SETS, "root": str(tmp_path)}
    preview = run("tuning", _ansible_check_mode=True, _ansible_diff=True, **options)
    assert preview["changed"] and len(preview["changes"]) == 2 and picture(host) == first
    applied = run("tuning", **options)
    assert applied["changed"] and applied["changes"] == preview["changes"] and applied["diff"] == preview["diff"]
    assert not run("tuning", **options)["changed"]
    assert run("tuning_info", **options)["in_sync"]
    (tmp_path / "etc/sysctl.d/zz-gpu-fleet-memory.conf").write_text("vm.swappiness = 60\n")
    audit = run("tuning_info", **options)
    assert [(row["view"], row["actual"]) for row in audit["drift"]] == [("stored", "60"), ("boot", "60")]
    assert run("tuning", **options)["changed"] and run("tuning_info", **options)["in_sync"]
    assert run("tuning", state="absent", **options)["changed"] and picture(host) == first
    assert not run("tuning", state="absent", **options)["changed"]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([{"name": "a", "sysctl": [{"key": "vm.swappiness", "value": True}]}], "vm.swappiness: the value is a boolean"),
        ([{"name": "a", "sysctl": [{"key": "vm.swappiness", "value": [1, 2]}]}], "vm.swappiness: the value is a list"),
        ([{"name": "a", "sysctl": [{"key": "vm.swappiness", "value": {"b": 1}}]}], "the value is a list or a mapping"),
        ([{"name": "a", "sysctl": [{"key": "vm.swappiness"}]}], "missing required arguments: value"),
        ([{"name": "a", "sysctl": [{"key": "vm.swappiness", "value": "1", "valeu": "2"}]}], "valeu"),
        (
            [{"name": "a", "sysctl": [{"key": "vm.swappiness", "value": "1", "rule": "most"}]}],
            "value of rule must be one of",
        ),
        ([{"name": "a", "sysctl": [{"key": "vm.swappiness", "value": "1\nkernel.sysrq=1"}]}], "line break"),
        ([{"sysctl": []}], "missing required arguments: name"),
        ([{"name": "a"}, {"name": "a"}], "set a: is named twice"),
        ([{"name": "a", "sysctls": []}], "sysctls"),
    ],
)
def test_bad_input_is_one_sentence_before_the_first_change(tmp_path: Path, sets: list[Any], said: str) -> None:
    host = build(tmp_path)
    first = picture(host)
    for name in ("tuning", "tuning_info"):
        answer = run(name, sets=sets, root=str(tmp_path))
        assert answer["failed"] and said in answer["msg"] and "\n" not in answer["msg"]
    assert picture(host) == first


def test_a_tree_that_is_no_system_is_refused(tmp_path: Path) -> None:
    answer = run("tuning", sets=SETS, root=str(tmp_path / "not-mounted"))
    assert answer["failed"] and "is the image mounted?" in answer["msg"]
    assert not (tmp_path / "not-mounted").exists()


def test_result_keys_are_none_that_ansible_interprets(tmp_path: Path) -> None:
    build(tmp_path)
    taken = {"skipped", "results", "ansible_facts", "rc", "stdout", "stderr", "exception", "unreachable"}
    for name in ("tuning", "tuning_info"):
        assert not taken & set(run(name, sets=SETS, root=str(tmp_path)))


# A file without main() documents an action plugin, which runs on the controller.
MODULE_FILES = sorted(path for path in MODULES.glob("[!_]*.py") if "def main()" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MODULE_FILES, ids=lambda path: path.stem)
def test_an_old_python_is_refused_with_one_sentence(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ast.parse(path.read_text(), feature_version=(3, 6))
    monkeypatch.setattr(sys, "version_info", (3, 8, 18, "final", 0))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    answer = json.loads(capsys.readouterr().out)
    assert ended.value.code == 1 and answer["failed"] and "needs Python 3.9 or newer" in answer["msg"]

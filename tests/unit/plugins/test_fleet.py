# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts a fleet playbook works on, and the table it ends with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.errors import AnsibleError, AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gpu_fleet.node.plugins.filter.audit_lines import audit_lines
from ansible_collections.gpu_fleet.node.plugins.filter.fleet_table import fleet_table
from ansible_collections.gpu_fleet.node.plugins.filter.host_advice import host_advice
from ansible_collections.gpu_fleet.node.plugins.filter.launcher_file import launcher_file
from ansible_collections.gpu_fleet.node.plugins.filter.launcher_rule import launcher_rule
from ansible_collections.gpu_fleet.node.plugins.filter.unit_properties import unit_properties
from ansible_collections.gpu_fleet.node.plugins.lookup.fleet_hosts import LookupModule

FLEET = {
    "all": ["a1", "a2", "b1", "cpu"],
    "ungrouped": [],
    "gpu_nodes": ["a1", "a2", "b1"],
    "drained": ["a2"],
    "empty": [],
}


def hosts(groups: dict[str, list[str]], pattern: Any = "") -> list[str]:
    """Ask the lookup the way a play does."""
    found: list[str] = LookupModule(loader=DataLoader()).run([pattern], variables={"groups": groups})
    return found


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ["a1", "a2", "b1"]),
        (None, ["a1", "a2", "b1"]),
        ("gpu_nodes", ["a1", "a2", "b1"]),
        ("all", ["a1", "a2", "b1", "cpu"]),
        ("cpu", ["cpu"]),
        ("*", ["a1", "a2", "b1", "cpu"]),
        ("a?", ["a1", "a2"]),
        ("~[ab]1", ["a1", "b1"]),
        ("gpu_nodes:!drained", ["a1", "b1"]),
        ("gpu_nodes,!drained", ["a1", "b1"]),
        ("gpu_nodes:&drained", ["a2"]),
        ("gpu_nodes:!empty", ["a1", "a2", "b1"]),
        ("gpu_nodes[0]", ["a1"]),
    ],
)
def test_hosts(pattern: str | None, expected: list[str]) -> None:
    assert hosts(FLEET, pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("gpu_nodez", "'gpu_nodez' names neither"),
        ("gpu_nodes:!draned", "'draned' names neither"),
        ("gpu_nodes:&draned", "'draned' names neither"),
        ("x*", "'x\\*' names neither"),
        ("a*", "'a\\*' also matches the group all"),
        ("~a.*", "also matches the group all"),
        ("gpu_nodes:!a*", "also matches the group all"),
        ("empty", "leaves no host"),
        ("drained:!drained", "leaves no host"),
    ],
)
def test_a_name_that_the_inventory_does_not_know_touches_nothing(pattern: str, said: str) -> None:
    with pytest.raises(AnsibleError, match=f"tune_hosts: .*{said}.*nothing is touched|{said}.*nothing is touched"):
        hosts(FLEET, pattern)


def test_the_only_host_of_an_inventory_needs_no_group() -> None:
    assert hosts({"all": ["one"], "ungrouped": ["one"]}) == ["one"]


@pytest.mark.parametrize("groups", [{"all": ["a", "b"]}, {"all": []}, {}, {"all": ["a", "b"], "gpu_nodes": []}])
def test_without_the_group_a_larger_inventory_is_never_taken_whole(groups: dict[str, list[str]]) -> None:
    with pytest.raises(AnsibleError, match="nothing is touched"):
        hosts(groups)


RESULT: dict[str, Any] = {"changes": [], "pending": [], "conflicts": [], "not_applicable": []}
LOST = {"key": "/sys/kernel/mm/transparent_hugepage/enabled", "wins_at_boot": "theirs"}


@pytest.mark.parametrize(
    ("result", "cells"),
    [
        (RESULT, ["0", "0", "0", "-", "ok"]),
        ({**RESULT, "changes": [1, 2]}, ["2", "0", "0", "-", "ok"]),
        ({**RESULT, "conflicts": [LOST]}, ["0", "0", "1", "-", "conflict: transparent_hugepage/enabled"]),
        ({**RESULT, "conflicts": [{**LOST, "wins_at_boot": "ours"}]}, ["0", "0", "1", "-", "ok"]),
        (
            {**RESULT, "conflicts": [{**LOST, "wins_at_boot": "unknown"}]},
            ["0", "0", "1", "-", "conflict: transparent_hugepage/enabled"],
        ),
        ({**RESULT, "pending": [{"key": "vm.x"}]}, ["0", "1", "0", "-", "pending: vm.x"]),
        ({**RESULT, "not_applicable": [{"key": "vm.x"}]}, ["0", "0", "0", "-", "ok, not applicable: vm.x"]),
        ({"failed": True, "msg": "no"}, ["-", "-", "-", "-", "failed: no"]),
        ({"unreachable": True, "msg": "no"}, ["-", "-", "-", "-", "not reached"]),
        ({}, ["-", "-", "-", "-", "no result: not reached, or failed before"]),
        ({"in_sync": True, "drift": [], "conflicts": []}, ["-", "-", "0", "0", "in sync"]),
        (
            {"in_sync": False, "drift": [{"key": f"vm.{n}", "actual": "1"} for n in "abcde"], "conflicts": []},
            ["-", "-", "0", "5", "drift: vm.a, vm.b, vm.c and 2 more"],
        ),
        (
            {"in_sync": False, "drift": [{"key": "vm.a", "actual": "unknown"}], "conflicts": []},
            ["-", "-", "0", "1", "unknown: vm.a"],
        ),
    ],
)
def test_the_table(result: dict[str, Any], cells: list[str]) -> None:
    heading, line = fleet_table({"node-with-a-name": result})
    assert heading.split() == ["host", "changed", "pending", "conflicts", "drift", "verdict"]
    assert line.split(None, 5) == ["node-with-a-name", *cells]
    assert [line.index(cell) for cell in cells[-1:]] == [heading.index("verdict")]


def test_the_table_with_gpus() -> None:
    facts = {
        "a": {"visible_count": 7, "expected_count": 8, "state": "ok"},
        "b": {"visible_count": None, "expected_count": 8, "state": "timeout"},
    }
    lines = fleet_table({"a": {"changes": []}, "b": {}, "c": {}}, facts)
    assert [line.split()[:5] for line in lines[:3]] == [
        ["host", "GPUs", "state", "changed", "pending"],
        ["a", "7", "of", "8", "ok"],
        ["b", "?", "of", "8", "timeout"],
    ]
    assert lines[3].split()[:3] == ["c", "-", "-"] and "GPUs" not in fleet_table({"a": {}}, {"a": {}})[0]


HEALTHY = {
    "state": "ok",
    "as_expected": True,
    "gpus": [{"memory": {"unified": False}}],
    "numa": {"cpu_nodes": 2, "numactl": "/bin/numactl"},
}


@pytest.mark.parametrize(
    ("gpu", "allocator", "said"),
    [
        (HEALTHY, {}, []),
        ({}, {}, []),
        ({**HEALTHY, "state": "version_mismatch", "action": "reboot"}, {}, ["version_mismatch; reboot"]),
        ({**HEALTHY, "as_expected": False, "visible_count": 7, "expected_count": 8}, {}, ["7 are visible and 8"]),
        ({**HEALTHY, "numa": {"cpu_nodes": 2, "numactl": None}}, {}, ["numactl: is missing"]),
        ({**HEALTHY, "numa": {"cpu_nodes": 1, "numactl": None}}, {}, []),
        (HEALTHY, {"advisories": [{"subject": "torch", "problem": "leaks", "action": "update"}]}, ["leaks; update"]),
    ],
)
def test_advice(gpu: dict[str, Any], allocator: dict[str, Any], said: list[str]) -> None:
    found = host_advice(gpu, allocator)
    assert len(found) == len(said) and all(part in text for part, text in zip(said, found)), found


def test_a_memory_limit_beside_shared_memory_has_a_caveat() -> None:
    definitions = [
        {"name": "gpu.slice", "memory_max": "4G", "tasks_max": 9},
        {"name": "a.slice", "memory_high": "4G"},
    ]
    unified = {"gpus": [{"memory": {"unified": False}}, {"memory": {"unified": True}}]}
    assert ["caveat" in row for row in unit_properties(definitions, "", unified)] == [True, False, False]
    for facts in (HEALTHY, {}, None, {"gpus": [{"memory": {"unified": None}}]}):
        assert not any("caveat" in row for row in unit_properties(definitions, "", facts))


def test_a_rule_allows_one_command_of_one_group() -> None:
    text = launcher_rule("ml", "/usr/local/bin/gpu-run", "gpu-jobs.slice")
    assert '"/usr/local/bin/gpu-run" + " --enter=" + "gpu-jobs.slice"' in text and 'isInGroup("ml")' in text
    assert launcher_rule("", "/usr/local/bin/gpu-run", "") == ""
    for group, name in (('m"l', "gpu.slice"), ("ml", ""), ("ml", "gpu.service")):
        with pytest.raises(AnsibleFilterError):
            launcher_rule(group, "/usr/local/bin/gpu-run", name)


@pytest.mark.parametrize(
    ("definition", "said"),
    [({"memory_max": "1G"}, "has no name"), ({"name": "a.slice", "memry_max": 1}, "'memry_max'")],
)
def test_a_definition_that_cannot_be_meant_is_one_sentence(definition: dict[str, Any], said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        unit_properties([definition])


def test_the_lines_of_an_audit() -> None:
    drift = {
        "key": "vm.swappiness",
        "wanted": "10",
        "view": "boot",
        "actual": "30",
        "by": "/usr/lib/sysctl.d/99-x.conf",
    }
    late = {
        "key": "slurmd.service LimitCORE",
        "wanted": "0:0",
        "view": "running",
        "actual": None,
        "by": "process 7 runs",
    }
    gone = {"key": "fs.file-max", "wanted": None, "view": "wanted", "actual": "9", "by": "not declared any more"}
    other = {"key": "vm.swappiness", "theirs": None, "source": "rc.local:3", "wins_at_boot": "unknown"}
    limit = {"who": "alice", "item": "soft nofile", "value": "512", "by": "limits.d/10.conf:2"}
    here = {"key": "a", "wanted": "1", "view": "host", "actual": None, "by": "a: this host has no 1"}
    result = {"drift": [drift, late, gone, here], "conflicts": [other], "effective": [limit]}
    lines = audit_lines(result)
    assert lines == [
        "vm.swappiness: wanted 10, boot is 30 (/usr/lib/sysctl.d/99-x.conf)",
        "slurmd.service LimitCORE: wanted 0:0, but process 7 runs",
        "fs.file-max: not declared any more, and still 9",
        "a: this host has no 1",
        "vm.swappiness: rc.local:3 says a value that is not understood, wins at the next boot: unknown",
    ]
    assert audit_lines(result, limits=True) == [*lines, "alice: soft nofile is 512 by limits.d/10.conf:2"]
    assert audit_lines({}) == []


def test_f26_a_library_by_name_is_left_to_each_host() -> None:
    told = json.loads(launcher_file({"LD_PRELOAD": "jemalloc:lib~x+.so /opt/liby.so  /opt/$LIB/libz.so a@b"}))
    assert told["environment"]["LD_PRELOAD"] == "@jemalloc@ @lib~x+.so@ /opt/liby.so /opt/$LIB/libz.so a@b"


def test_f25_the_launcher_s_file_has_allocator_strings_as_torch_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    text = launcher_file(
        {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128, expandable_segments:False", "N": 8}, "gpu.slice"
    )
    told = json.loads(text)
    assert told == {
        "environment": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:False", "N": "8"},
        "slice": "gpu.slice",
    }
    assert text.startswith("\n"), "older Ansible takes a text that begins with a brace for a mapping"
    launcher_file({"PYTORCH_ALLOC_CONF": "max_split_size_mb:500,expandable_segments:True"})
    warned = " ".join("".join(capsys.readouterr()).split())
    assert "PYTORCH_ALLOC_CONF" in warned and "max_split_size_mb" in warned


@pytest.mark.parametrize(
    ("environment", "name", "said"),
    [
        ({"PYTORCH_ALLOC_CONF": "expandeable_segments:True"}, "", "expandable_segments was meant"),
        ({"A": True}, "", "quote it"),
        ({"A": None}, "", "quote it"),
        ({"A": "b\nc"}, "", "not a text on one line"),
        ({"LD_PRELOAD": "jemalloc\n/x.so"}, "", "not a text on one line"),
        ({"A b": "c"}, "", "not the name of a variable"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "", "set by gpu-run"),
        ({}, "gpu.service", "not the name of a slice"),
    ],
)
def test_what_a_launcher_s_file_may_not_say(environment: dict[str, Any], name: str, said: str) -> None:
    with pytest.raises(AnsibleFilterError, match=said):
        launcher_file(environment, name)

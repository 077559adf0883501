# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Known bad combinations: each entry of the table matches what it means, and a small change ends the match."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _advisories
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._table import ADVISORIES, When

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "allocator_advisories.yml").read_text(encoding="utf-8"))
NONE = {"value": None, "reason": "no level sets this limit"}
PYTHON = "/opt/pytorch/bin/python3"
HEALTHY: dict[str, Any] = {
    "host": {
        "memory": {"swap_total": 1 << 30},
        "overcommit": {"mode": 0},
        "shm": {"size": 1 << 34},
        "thp": {"enabled": "madvise", "huge_page": 2 << 20},
        "ptrace_scope": {"value": 0, "reasons": {}},
    },
    "cgroup": {
        "caller": {"name": "caller", "limits": {"memory_max": NONE, "memory_high": NONE}},
        "slices": [
            {"name": "gpu-jobs.slice", "limits": {"memory_max": NONE, "memory_high": NONE}},
            {"name": "no name", "limits": None},
        ],
    },
    "limits": {"logins": [{"limits": {"nofile": {"soft": 65536}, "as": {"hard": None}}}]},
    "malloc": {"glibc": {"tunables": ["glibc.malloc.check"]}, "variables": [], "preloads": []},
    "torch": [
        {
            "interpreter": PYTHON,
            "folder": "/opt/pytorch/torch",
            "version": "2.11.0+cu130",
            "cuda": "13.0",
            "hip": None,
            "nccl": "2.28.9",
            "cudnn": "9.15.1",
            "nccl_required": "2.28.9",
            "cpu_tensors": "malloc",
            "malloc": {"name": "glibc"},
            "allocator": {"options": {}, "backend": "native"},
            "reasons": {"hip": "this torch was built without HIP"},
        }
    ],
}


def changed(facts: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with some of them replaced, each by its path."""
    facts = copy.deepcopy(facts)
    for path, value in changes.items():
        *way, last = path.split(".")
        place: Any = facts
        for name in way:
            place = place[int(name)] if name.isdigit() else place[name]
        place[last] = value
    return facts


def names(facts: dict[str, Any], kernel: str = "6.18.0") -> list[str]:
    return [one["name"] for one in _advisories.match(facts, kernel)["advisories"]]


def test_a_healthy_host_has_none_and_nothing_is_left_undecided() -> None:
    assert _advisories.match(HEALTHY, "6.18.0") == {"advisories": [], "undecided_advisories": []}


def test_every_entry_of_the_table_has_a_case() -> None:
    assert {advisory.name for advisory in ADVISORIES} == {case["name"] for case in CASES}
    assert len({advisory.name for advisory in ADVISORIES}) == len(ADVISORIES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_it_matches_what_it_means_and_nothing_near(case: dict[str, Any]) -> None:
    kernel = case.get("kernel", "6.18.0")
    facts = changed(HEALTHY, case["facts"])
    assert names(facts, kernel) == [case["name"]]
    assert case["name"] not in names(changed(facts, case["but"]), kernel)


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda advisory: advisory.name)
def test_every_entry_says_what_happens_what_to_do_and_who_says_so(advisory: Any) -> None:
    assert advisory.when and advisory.source
    assert not advisory.problem.endswith(".") and not advisory.action.endswith(".")


def test_a_match_shows_the_facts_and_whom_it_is_about() -> None:
    changes = {"torch.0.cuda": "11.4", "torch.0.nccl": "2.9.6", "torch.0.nccl_required": None}
    facts = changed(HEALTHY, {**changes, "host.overcommit.mode": 2})
    host, torch = _advisories.match(facts, "6.18.0")["advisories"]
    assert (host["subject"], host["observed"]) == ("host", {"overcommit": 2})
    assert (torch["subject"], torch["severity"]) == (PYTHON, "warning")
    assert torch["observed"] == {"torch.cuda": "11.4", "torch.nccl": "2.9.6"}


def test_a_slice_is_judged_by_itself() -> None:
    changes = {"host.memory.swap_total": 0, "cgroup.slices.0.limits.memory_high": {"value": 4096}}
    found = _advisories.match(changed(HEALTHY, changes), "6.18.0")["advisories"]
    assert [(one["name"], one["subject"]) for one in found] == [("memory-high-alone", "gpu-jobs.slice")]


def test_what_cannot_be_read_is_undecided_and_not_a_pass() -> None:
    facts = changed(HEALTHY, {"torch.0.cuda": "11.4", "torch.0.nccl": None, "torch.0.nccl_required": None})
    result = _advisories.match(facts, "5.15.0")
    assert result["advisories"] == []
    assert result["undecided_advisories"] == [
        {"name": "cuda-11.4-nccl-2.9.6", "subject": PYTHON, "unread": ["torch.nccl"]}
    ]


def test_what_stands_in_the_place_of_a_fact_that_was_not_read() -> None:
    """Limits that could not be read are not "no limit", and an NCCL that could not be read is not the right one."""
    unread = _advisories.match({**HEALTHY, "limits": None}, "6.18.0")["undecided_advisories"]
    assert {one["name"] for one in unread} == {"address-space-limit", "few-open-files"}
    unread = _advisories.match(changed(HEALTHY, {"torch.0.nccl": None}), "6.18.0")["undecided_advisories"]
    assert [(one["name"], one["unread"]) for one in unread] == [("nccl-not-as-built", ["torch.nccl_differs"])]


def test_a_build_without_gpus_reads_no_configuration() -> None:
    options = {"expandable_segments": "True", "max_split_size_mb": "64"}
    built = {
        "cuda": None,
        "nccl": None,
        "nccl_required": None,
        "reasons": {"cuda": "this torch was built without CUDA"},
    }
    changes = {f"torch.0.{name}": value for name, value in {**built, "version": "2.0.1+cpu"}.items()}
    variables = [{"name": "PYTORCH_ALLOC_CONF", "value": "expandable_segments:True,max_split_size_mb:64"}]
    allocator = {"options": options, "backend": None, "valid": False}
    facts = changed(HEALTHY, {**changes, "torch.0.allocator": allocator, "malloc.variables": variables})
    assert _advisories.match(facts, "5.4.0") == {"advisories": [], "undecided_advisories": []}


def test_a_kernel_without_huge_pages_gives_none() -> None:
    thp = {"available": False, "enabled": None, "huge_page": None}
    facts = changed(HEALTHY, {"host.thp": thp})
    assert _advisories.match(facts, "6.18.0") == {"advisories": [], "undecided_advisories": []}
    asked = changed(facts, {"malloc.variables": [{"name": "THP_MEM_ALLOC_ENABLE", "value": "1"}]})
    assert names(asked) == ["thp-variable-thp-never"]


def test_of_the_tunables_of_several_sources_the_first_counts() -> None:
    rows = [{"name": "GLIBC_TUNABLES", "value": value} for value in ("glibc.malloc.check=1", "glibc.malloc.hugetlb=1")]
    facts = changed(HEALTHY, {"host.thp.enabled": "never", "malloc.glibc.tunables": ["glibc.malloc.hugetlb"]})
    assert names(changed(facts, {"malloc.variables": rows})) == []
    assert names(changed(facts, {"malloc.variables": rows[::-1]})) == ["hugetlb-tunable-thp-never"]


def test_one_condition_that_fails_decides_whatever_is_unknown() -> None:
    facts = changed(HEALTHY, {"torch.0.cuda": "12.4", "torch.0.nccl": None, "torch.0.nccl_required": None})
    assert _advisories.match(facts, "5.15.0")["undecided_advisories"] == []


def test_a_build_without_cuda_is_not_about_nccl() -> None:
    changes = {"torch.0.cuda": None, "torch.0.nccl": None, "torch.0.nccl_required": None}
    facts = changed(HEALTHY, {**changes, "torch.0.reasons": {"cuda": "this torch was built without CUDA"}})
    assert _advisories.match(facts, "6.18.0") == {"advisories": [], "undecided_advisories": []}


@pytest.mark.parametrize("section", ["host", "cgroup", "limits", "malloc", "torch"])
def test_a_section_that_failed_stops_nothing(section: str) -> None:
    result = _advisories.match({**HEALTHY, section: None}, "6.18.0")
    assert result["advisories"] == []
    assert all(one["unread"] for one in result["undecided_advisories"])
    assert bool(result["undecided_advisories"]) is (section in ("host", "limits", "malloc"))


def test_without_torch_only_the_host_is_judged() -> None:
    facts = changed(HEALTHY, {"torch": [], "host.shm.size": 1, "host.overcommit.mode": 2})
    assert names(facts) == ["overcommit-never"]


@pytest.mark.parametrize(
    ("when", "answer"),
    [
        (When("v", "below", "2.10"), True),
        (When("v", "below", "2.9"), False),
        (When("v", "at_least", "2.9.0"), True),
        (When("v", "series", "2"), True),
        (When("v", "series", "2.9.1"), False),
        (When("v", "not", "x"), True),
        (When("gone", "absent"), True),
        (When("gone", "is", None), False),
        (When("unknown", "set"), None),
        (When("unknown", "absent"), None),
        (When("words", "below", "2.9"), None),
        (When("number", "at_most", 5), True),
        (When("number", "at_least", 6), False),
        (When("number", "below", 5), False),
        (When("number", "below", 6), True),
        (When("v", "at_most", "2.9"), False),
        (When("v", "at_most", "2.9.0"), True),
        (When("none", "at_most", 5), False),
        (When("none", "below", 5), False),
        (When("none", "at_least", 5), True),
    ],
)
def test_conditions(when: When, answer: bool | None) -> None:
    view = {"v": "2.9.0+cu128", "unknown": None, "words": "main", "number": 5, "none": "unlimited"}
    assert _advisories.holds(when, view) is answer

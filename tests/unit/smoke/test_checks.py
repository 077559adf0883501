# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the checks make of a fault, on figures and stand-ins: no torch, no GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe import (
    _allocator,
    _bandwidth,
    _collectives,
    _environment,
    _exhaustion,
    _fragmentation,
    _main,
    _pinned,
    _training,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe._cgroup import Level
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe._report import MIB, Context, Row, measure
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe._stack import Outcome

GOOD = {
    "baseline": 6410,
    "accumulation": 7547,
    "checkpointing": 2709,
    "fp16": 4653,
    "fp16_checkpointing": 2700,
    "bf16": 4653,
    "bf16_checkpointing": 2607,
}
GRADIENTS = 1209 * MIB


def statuses(found: Any) -> dict[str, str]:
    """Return the status of each row by name."""
    return {one.name: one.status for one in found if isinstance(one, Row)}


def relations(**changed: int) -> set[str]:
    """Return the relations that do not hold."""
    outcomes = {name: Outcome(peak * MIB, 1.0, 1.0, None) for name, peak in {**GOOD, **changed}.items()}
    found = statuses(_training.relations("t", outcomes, GRADIENTS, True))
    assert len(found) == 8
    return {name for name, status in found.items() if status == "fail"}


def test_the_relations_of_a_training_step() -> None:
    assert relations() == set()
    assert relations(checkpointing=6410) == {"t.checkpointing_lower"}
    assert relations(bf16=7000) == {"t.bf16_lower"}
    assert relations(fp16_checkpointing=4700) == {"t.fp16_checkpointing_lowest"}
    assert relations(accumulation=8000) == {"t.accumulation_bounded"}


def test_a_step_that_is_too_small_is_unknown() -> None:
    outcomes = {name: Outcome(1, 1.0, 1.0, None) for name in GOOD}
    assert statuses(_training.relations("t", outcomes, 1, True)) == {"t.relations": "unknown"}


def test_fragmentation_leaves_the_jobs_their_own_configuration() -> None:
    expandable = "expandable_segments:True"
    for environment, in_force, others in (
        ({}, "", ["expandable"]),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments: True"}, expandable, ["expandable", "classic"]),
        ({"PYTORCH_HIP_ALLOC_CONF": expandable}, expandable, ["expandable", "classic"]),
        (
            {"PYTORCH_ALLOC_CONF": "backend:native", "PYTORCH_CUDA_ALLOC_CONF": expandable},
            expandable,
            ["expandable", "classic"],
        ),
        ({"PYTORCH_ALLOC_CONF": expandable, "PYTORCH_CUDA_ALLOC_CONF": ""}, "", ["expandable"]),
    ):
        found = _fragmentation.modes(environment)
        assert found["in_force"] == (in_force, {}) and list(found) == ["in_force", *others]
        assert all(set(found[mode][1]) == set(_fragmentation.NAMES) for mode in others)


@pytest.mark.parametrize(
    ("mode", "configuration", "answer", "status"),
    [
        ("in_force", "", {"holes": 1000, "growth": 0, "wanted": 600, "served": False}, "pass"),
        ("expandable", _fragmentation.EXPANDABLE, {"holes": 1000, "growth": 0, "wanted": 600, "served": True}, "pass"),
        ("expandable", _fragmentation.EXPANDABLE, {"holes": 1000, "growth": 0, "wanted": 600, "served": False}, "fail"),
        ("in_force", "backend:cudaMallocAsync", {"error": "exit status 1: RuntimeError"}, "fail"),
    ],
)
def test_fragmentation_by_mode(mode: str, configuration: str, answer: dict[str, Any], status: str) -> None:
    found = statuses(_fragmentation.rows(mode, configuration, answer))
    assert found == {f"fragmentation.{mode}": status}


@pytest.mark.parametrize(
    ("answers", "gpus", "status", "words"),
    [
        ([{"wrong": 0, "seconds": 1.0, "bytes": 8, "rounds": 5}] * 2, 0, "pass", "no GPU takes part"),
        ([{"wrong": 1, "seconds": 1.0, "bytes": 8, "rounds": 5}] * 2, 2, "fail", "nccl over 2 processes"),
        ([{"error": "no answer within 48 s"}] * 2, 2, "fail", "no answer within 48 s"),
    ],
)
def test_collectives(monkeypatch: pytest.MonkeyPatch, answers: list[Any], gpus: int, status: str, words: str) -> None:
    monkeypatch.setattr(_collectives, "together", lambda *_arguments: answers)
    names = tuple(f"cuda:{index}" for index in range(gpus))
    found = [
        one
        for one in _collectives.check(Context(None, None, "", names, options={"timeout": 60}))
        if isinstance(one, Row)
    ]
    assert found[0].status == status and words in found[0].reason + found[0].threshold_source
    assert [one.name for one in found[1:]] == ([] if gpus else ["collectives.nccl"])


def card(**changed: Any) -> Any:
    """Return a torch whose card refuses what is too much and gives all back, but for what is changed."""

    def empty(*_size: Any, **_kind: Any) -> Any:
        raise cuda.OutOfMemoryError

    cuda = SimpleNamespace(
        OutOfMemoryError=MemoryError,
        empty_cache=lambda: None,
        synchronize=lambda _gpu: None,
        mem_get_info=lambda _gpu: (90, 100),
        memory_allocated=lambda _gpu: 0,
        memory_reserved=lambda _gpu: 0,
    )
    cuda.__dict__.update({name: value for name, value in changed.items() if name != "empty"})
    return SimpleNamespace(cuda=cuda, empty=changed.get("empty", empty), uint8=None)


def test_running_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_exhaustion, "step", lambda _torch, _gpu: True)
    assert set(statuses(_exhaustion.exhaust(card(), "cuda:0")).values()) == {"pass"}
    left = iter([0, 4096])
    lost = statuses(_exhaustion.exhaust(card(memory_allocated=lambda _gpu: next(left)), "cuda:0"))
    assert {name for name, status in lost.items() if status == "fail"} == {"out_of_memory.gpu0.allocated"}
    never = statuses(_exhaustion.exhaust(card(empty=lambda *_size, **_kind: None), "cuda:0"))
    assert never["out_of_memory.gpu0.caught"] == "fail"
    monkeypatch.setattr(_exhaustion, "step", lambda _torch, _gpu: False)
    assert statuses(_exhaustion.exhaust(card(), "cuda:0"))["out_of_memory.gpu0.next_step"] == "fail"


def test_a_driver_that_keeps_memory_fails_the_allocator_check() -> None:
    allocated = iter([0, 4_000_256, 0, 0, 0, 0])
    free = iter([64 * MIB, 44 * MIB, 44 * MIB, 44 * MIB])
    torch = card(
        memory_allocated=lambda _gpu: next(allocated),
        mem_get_info=lambda _gpu: (next(free), 64 * MIB),
        reset_peak_memory_stats=lambda _gpu: None,
        max_memory_allocated=lambda _gpu: 64 * MIB,
        empty=lambda *_size, **_kind: None,
    )
    torch.zeros, torch.float32 = torch.empty, None
    found = statuses(_allocator.lifecycle(torch, "cuda:0"))
    assert {name for name, status in found.items() if status == "fail"} == {"allocator.gpu0.driver"}


def test_pinned_memory_is_rounded_up_before_it_is_compared() -> None:
    level = Level("/sys/fs/cgroup/gpu.slice", 2)
    assert _pinned.charged(3 * MIB) == 4 * MIB and _pinned.charged(4 * MIB) == 4 * MIB
    assert statuses(_pinned.foresee(3 * MIB, (4 * MIB, level)))["pinned.foreseen"] == "pass"
    assert statuses(_pinned.foresee(3 * MIB, (4 * MIB - 1, level)))["pinned.foreseen"] == "fail"


def test_a_missing_gpu_and_a_wrong_name_never_pass() -> None:
    context = Context(None, None, "", ("cuda:0",))
    assert statuses(_environment.gpus(context, 8)) == {"environment.gpus": "fail"}
    assert statuses(_environment.gpus(context, 1)) == {"environment.gpus": "pass"}
    gap = Context(None, None, "", gap=Row("", "unknown", reason="torch 2 is built without CUDA"))
    assert statuses(_environment.gpus(gap, None)) == {"environment.gpus": "unknown"}
    assert _environment.limit("nofiles", "1").status == "unknown"
    assert [statuses(_main.run(name, gap, {})) for name in _main.NEEDS_GPU] == [
        {name: "unknown"} for name in _main.NEEDS_GPU
    ]


def test_a_cuda_error_is_a_fault_and_any_other_error_is_unknown() -> None:
    assert _main.broken("fill", RuntimeError("CUDA error: uncorrectable ECC error")).status == "fail"
    assert _main.broken("fill", RuntimeError("something else")).status == "unknown"


def test_sizes_and_medians() -> None:
    assert [_environment.parse(size) for size in ("4G", "4GiB", "512m", "7")] == [4 << 30, 4 << 30, 512 << 20, 7]
    figure = measure("a", "GB/s", [1.0, 9.0, 2.0, 3.0, 4.0])
    assert (figure.value, figure.spread, figure.samples) == (3.0, 1.0, 5)


def test_a_disturbed_round_does_not_lower_a_bandwidth() -> None:
    calm, disturbed = [0.010, 0.010, 0.011], [0.012, 0.013, 0.012]
    figure = _bandwidth.rate("x", 10**9, [disturbed, calm, calm, disturbed])
    assert figure.value == 100.0 and figure.samples == 12 and figure.spread > 0

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Known bad combinations, as data: to add one, add an entry and a case to its test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operator = Literal["is", "not", "series", "below", "at_least", "at_most", "set", "absent"]
Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class When:
    """One condition on one fact (see _advisories.py for their names); versions compare number by number."""

    fact: str
    operator: Operator
    value: str | int | bool | None = None


@dataclass(frozen=True)
class Advisory:
    """A combination that is known to hurt: all conditions hold at once."""

    name: str
    severity: Severity
    when: tuple[When, ...]
    problem: str
    action: str
    source: str


ADVISORIES = (
    Advisory(
        "cuda-11.4-nccl-2.9.6",
        "error",
        (When("torch.cuda", "series", "11.4"), When("torch.nccl", "series", "2.9.6")),
        "NCCL 2.9.6 leaks memory with CUDA 11.4, until a long job runs out of it",
        "use a torch with NCCL 2.9.8 or newer",
        "NCCL release notes, 2.9.8 (memory leaks fixed)",
    ),
    Advisory(
        "allocator-string-refused",
        "error",
        (When("torch.configuration_valid", "is", False),),
        "this torch refuses the allocator configuration, so every job stops at its first use of CUDA",
        "correct the variable where it is set; the problems stand in the facts about this torch",
        "bitsandbytes-foundation/bitsandbytes#306; OpenRLHF/OpenRLHF#957",
    ),
    Advisory(
        "expandable-segments-torch",
        "error",
        (When("option.expandable_segments", "is", "True"), When("torch.version", "below", "2.1")),
        "expandable_segments is unknown to torch before 2.1, so every job stops at its first use of CUDA",
        "take the option out of the configuration, or use torch 2.1 or newer",
        "pytorch/pytorch#123505; mosaicml/llm-foundry#1088",
    ),
    Advisory(
        "expandable-segments-kernel",
        "warning",
        (When("option.expandable_segments", "is", "True"), When("kernel", "below", "5.6")),
        "segments are shared by pidfd_getfd, which kernels before 5.6 lack: processes cannot share CUDA tensors",
        "leave expandable_segments out for jobs that share CUDA tensors, or use a newer kernel",
        "pytorch/pytorch#165685, pytorch/pytorch#130890",
    ),
    Advisory(
        "expandable-segments-ptrace",
        "warning",
        (When("option.expandable_segments", "is", "True"), When("ptrace_scope", "at_least", 2)),
        "segments are shared by pidfd_getfd, which ptrace_scope forbids here: processes cannot share CUDA tensors",
        "set kernel.yama.ptrace_scope to 0 or 1, or leave expandable_segments out for jobs that share CUDA tensors",
        "pytorch/pytorch#165685",
    ),
    Advisory(
        "expandable-segments-split-size",
        "error",
        (
            When("option.expandable_segments", "is", "True"),
            When("option.max_split_size_mb", "set"),
            When("torch.version", "below", "2.3"),
        ),
        "max_split_size_mb together with expandable_segments makes this torch stop with an internal assertion",
        "take max_split_size_mb out of the configuration: it has no meaning with expandable segments",
        "pytorch/pytorch#123505, pytorch/pytorch#119452",
    ),
    Advisory(
        "new-name-old-torch",
        "warning",
        (
            When("variable.PYTORCH_ALLOC_CONF", "set"),
            When("variable.PYTORCH_CUDA_ALLOC_CONF", "absent"),
            When("torch.version", "below", "2.9"),
        ),
        "torch before 2.9 does not read PYTORCH_ALLOC_CONF, so the allocator runs with its defaults",
        "set PYTORCH_CUDA_ALLOC_CONF for this torch",
        "PyTorch release notes, 2.9",
    ),
    Advisory(
        "mimalloc-arena-max",
        "warning",
        (When("torch.cpu_tensors", "is", "mimalloc"), When("variable.MALLOC_ARENA_MAX", "set")),
        "CPU tensors of this torch come from mimalloc, so MALLOC_ARENA_MAX does not bound them",
        "steer mimalloc by its own variables (MIMALLOC_*), and watch the memory of the workers",
        "pytorch/pytorch#178726",
    ),
    Advisory(
        "mimalloc-preload",
        "warning",
        (When("torch.cpu_tensors", "is", "mimalloc"), When("torch.malloc", "is", "jemalloc")),
        "CPU tensors of this torch come from mimalloc, so the preloaded jemalloc does not serve them",
        "drop the preload, or measure that it still helps what is not a tensor",
        "pytorch/pytorch#178726",
    ),
    Advisory(
        "hugetlb-tunable-unknown",
        "warning",
        (When("tunable.glibc.malloc.hugetlb", "set"), When("accepts.glibc.malloc.hugetlb", "is", False)),
        "this C library does not know glibc.malloc.hugetlb (it came with 2.35) and passes over it silently",
        "leave the tunable out on this host, or use THP_MEM_ALLOC_ENABLE=1 for torch's own buffers",
        "glibc 2.35 news",
    ),
    Advisory(
        "hugetlb-tunable-thp-never",
        "warning",
        (When("tunable.glibc.malloc.hugetlb", "is", "1"), When("thp.enabled", "is", "never")),
        "glibc.malloc.hugetlb=1 asks for transparent huge pages, and this host gives none",
        "set transparent huge pages to madvise",
        "glibc manual, memory allocation tunables",
    ),
    Advisory(
        "thp-variable-thp-never",
        "warning",
        (When("variable.THP_MEM_ALLOC_ENABLE", "is", "1"), When("thp.enabled", "is", "never")),
        "THP_MEM_ALLOC_ENABLE=1 asks for transparent huge pages, and this host gives none",
        "set transparent huge pages to madvise",
        "pytorch/pytorch#107697",
    ),
    Advisory(
        "thp-variable-torch",
        "warning",
        (When("variable.THP_MEM_ALLOC_ENABLE", "is", "1"), When("torch.version", "below", "2.2")),
        "torch before 2.2 does not read THP_MEM_ALLOC_ENABLE",
        "use torch 2.2 or newer, or GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
        "pytorch/pytorch#115990",
    ),
    Advisory(
        "thp-always-large-pages",
        "warning",
        (When("thp.enabled", "is", "always"), When("page_size", "at_least", 65536)),
        "with pages of 64 KiB a huge page is 512 MiB, so `always` turns small buffers into large ones",
        "set transparent huge pages to madvise, and use the switches of single sizes",
        "Linux kernel documentation, transparent huge pages; docs/settings.md",
    ),
    Advisory(
        "overcommit-never",
        "warning",
        (When("overcommit", "is", 2),),
        "vm.overcommit_memory=2 counts what is mapped and never touched: forked workers multiply it until a fork fails",
        "set vm.overcommit_memory to 0, or to 1 for a program that needs it",
        "pytorch/pytorch#137393",
    ),
    Advisory(
        "address-space-limit",
        "error",
        (When("torch.cuda", "set"), When("login.as", "set")),
        "the limit on address space (`as`) is too small for CUDA, which reserves 100 GiB and more without touching it",
        "remove the limit `as`; bound memory by a slice",
        "microsoft/WSL#40401",
    ),
    Advisory(
        "few-open-files",
        "warning",
        (When("torch.version", "set"), When("login.nofile", "at_most", 1024)),
        "a soft limit of 1024 open files is soon used up: each shared tensor of a worker holds one",
        "raise the soft limit nofile of the jobs to 65536 or more",
        "pytorch/pytorch#973, pytorch/pytorch#11201",
    ),
    Advisory(
        "small-shm",
        "warning",
        (When("torch.version", "set"), When("shm.size", "at_most", 64 << 20)),
        "/dev/shm has at most 64 MiB, which workers and NCCL fill at once",
        "enlarge /dev/shm (containers: --ipc=host or --shm-size)",
        "NVIDIA/nccl#342",
    ),
    Advisory(
        "memory-high-alone",
        "warning",
        (When("group.memory_high", "set"), When("group.memory_max", "absent"), When("swap", "is", 0)),
        "a MemoryHigh without MemoryMax and without swap slows a job down for ever instead of ending it",
        "set MemoryMax above MemoryHigh",
        "Linux kernel documentation, cgroup v2, memory.high",
    ),
    Advisory(
        "preload-missing",
        "warning",
        (When("preload.missing", "set"),),
        "a library to preload is missing: the loader prints a line for every program, which spoils what others parse",
        "correct the path, or remove it from the place named in preloads",
        "pytorch/pytorch#180963; intel/intel-extension-for-pytorch#279",
    ),
    Advisory(
        "nccl-not-as-built",
        "warning",
        (When("torch.nccl_differs", "is", True),),
        "the NCCL beside torch is not the version that torch was built and tested with",
        "install the version that torch's package names",
        "the metadata of the torch wheel",
    ),
)

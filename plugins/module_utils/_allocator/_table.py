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
        "warning",
        (When("torch.cuda", "series", "11.4"), When("torch.nccl", "series", "2.9.6")),
        "NCCL 2.9.6 is older than its support of CUDA 11.4 (2.10.3) and reported to leak memory with it",
        "use a torch with NCCL 2.11.4 or newer, since 2.10 leaks on some topologies too",
        "field reports that NVIDIA has not confirmed; NCCL release notes, 2.10.3; NVIDIA/nccl#604",
    ),
    Advisory(
        "allocator-string-refused",
        "error",
        (When("torch.configuration_valid", "is", False),),
        "this torch refuses the allocator configuration, so every job stops at its first use of CUDA",
        "correct the variable where it is set; the problems stand in the facts about this torch",
        "bitsandbytes-foundation/bitsandbytes#306; mosaicml/llm-foundry#1088; OpenRLHF/OpenRLHF#957",
    ),
    Advisory(
        "expandable-segments-torch",
        "error",
        (When("option.expandable_segments", "is", "True"), When("torch.version", "below", "2.1")),
        "expandable_segments is unknown to torch before 2.1, so every job stops at its first use of CUDA",
        "take the option out of the configuration, or use torch 2.1 or newer",
        "pytorch/pytorch#96995; deepseek-ai/DeepSeek-VL2#103",
    ),
    Advisory(
        "expandable-segments-kernel",
        "warning",
        (When("option.expandable_segments", "is", "True"), When("kernel", "below", "5.6")),
        "segments are shared by pidfd_getfd, which kernels before 5.6 lack: processes cannot share CUDA tensors",
        "leave expandable_segments out for jobs that share CUDA tensors, or use a newer kernel",
        "pytorch/pytorch#165685, pytorch/pytorch#130890; oneapi-src/unified-memory-framework#1040",
    ),
    Advisory(
        "expandable-segments-ptrace",
        "warning",
        (When("option.expandable_segments", "is", "True"), When("ptrace_scope", "at_least", 1)),
        "segments are shared by pidfd_getfd, which ptrace_scope allows towards descendants only (1), to administrators "
        "only (2) or not at all (3): processes may not be able to share CUDA tensors",
        "set kernel.yama.ptrace_scope to 0, or leave expandable_segments out for jobs that share CUDA tensors",
        "pytorch/pytorch#165685; Linux kernel documentation, Yama; oneapi-src/unified-memory-framework#979",
    ),
    Advisory(
        "expandable-segments-split-size",
        "error",
        (
            When("option.expandable_segments", "is", "True"),
            When("option.max_split_size_mb", "set"),
            When("torch.version", "below", "2.5"),
        ),
        "max_split_size_mb together with expandable_segments can make this torch stop with an internal assertion when "
        "memory runs short",
        "take max_split_size_mb out of the configuration",
        "pytorch/pytorch#119452, pytorch/pytorch#123548, pytorch/pytorch#134338",
    ),
    Advisory(
        "new-name-old-torch",
        "warning",
        (
            When("variable.PYTORCH_ALLOC_CONF", "set"),
            When("variable.PYTORCH_CUDA_ALLOC_CONF", "absent"),
            When("variable.PYTORCH_HIP_ALLOC_CONF", "absent"),
            When("torch.backend", "set"),
            When("torch.version", "below", "2.10"),
        ),
        "the GPU allocator of torch before 2.10 does not read PYTORCH_ALLOC_CONF, so it runs with its defaults",
        "set PYTORCH_CUDA_ALLOC_CONF for this torch; newer ones read it too",
        "pytorch/pytorch#183387; c10/cuda/CUDAAllocatorConfig.h of torch 2.9.1 and 2.10.0",
    ),
    Advisory(
        "mimalloc-arena-max",
        "warning",
        (When("torch.cpu_tensors", "is", "mimalloc"), When("variable.MALLOC_ARENA_MAX", "set")),
        "CPU tensors of this torch come from mimalloc, so MALLOC_ARENA_MAX does not bound them",
        "steer mimalloc by its own variables (MIMALLOC_*), and watch the memory of the workers",
        "pytorch/pytorch#178726, pytorch/pytorch#164741",
    ),
    Advisory(
        "mimalloc-preload",
        "warning",
        (When("torch.cpu_tensors", "is", "mimalloc"), When("torch.malloc", "not", "glibc")),
        "CPU tensors of this torch come from mimalloc, so another malloc that is preloaded does not serve them",
        "drop the preload, or measure that it still helps what is not a tensor",
        "pytorch/pytorch#164741, pytorch/pytorch#104497",
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
        "glibc, malloc: Add madvise support for Transparent Huge Pages (libc-alpha, December 2021)",
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
        (When("thp.enabled", "is", "always"), When("thp.huge_page", "at_least", 64 << 20)),
        "a huge page of this kernel is 64 MiB or more, so `always` turns small buffers into large ones",
        "set transparent huge pages to madvise, and use the switches of single sizes",
        "Linux kernel documentation, HugeTLBpage on ARM64; docs/settings.md",
    ),
    Advisory(
        "overcommit-never",
        "warning",
        (When("overcommit", "is", 2),),
        "vm.overcommit_memory=2 counts what is mapped and never touched: forked workers multiply it until a fork fails",
        "set vm.overcommit_memory to 0, or to 1 for a program that needs it",
        "Linux kernel documentation, overcommit accounting",
    ),
    Advisory(
        "address-space-limit",
        "warning",
        (When("torch.cuda", "set"), When("login.as", "at_most", 128 << 30)),
        "the limit on address space (`as`) may be too small for CUDA, which reserves more than it touches: 17 GiB with "
        "one H200, 80 to 128 GiB elsewhere",
        "remove the limit `as`; bound memory by a slice",
        "docs/measurements.md; microsoft/WSL#40401",
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
        "Linux kernel documentation, cgroup v2, memory.high; FootprintAI/Containarium#1454",
    ),
    Advisory(
        "preload-missing",
        "warning",
        (When("preload.missing", "set"),),
        "a library to preload is missing: the loader prints a line for every program, which spoils what others parse",
        "correct the path, or remove it from the place named in preloads",
        "pytorch/pytorch#180963",
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

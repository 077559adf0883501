# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the roles hand to the engine, evaluated by Ansible itself, for the variables of a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
THP = "/sys/kernel/mm/transparent_hugepage"
DEFAULTS = [
    ("sysfs", f"{THP}/enabled", "madvise", "never"),
    ("sysfs", f"{THP}/defrag", "madvise", "never"),
    ("sysctl", "vm.swappiness", "10", None),
    ("sysctl", "vm.max_map_count", "1048576", "at_least"),
    ("sysctl", "kernel.pid_max", "4194304", "at_least"),
]
LIMITS = [
    f"{domain} {kind} {item} {value}"
    for domain in ("*", "root")
    for kind, item, value in (
        ("soft", "nofile", "65536"),
        ("hard", "nofile", "524288"),
        ("soft", "memlock", "unlimited"),
        ("hard", "memlock", "unlimited"),
    )
]
CASES: dict[str, tuple[dict[str, Any], list[tuple[str, str, str, str | None]]]] = {
    "the defaults": ({}, DEFAULTS),
    "nothing at all": (
        {
            "tune_thp_enabled": "",
            "tune_thp_defrag": "",
            "tune_sysctl_swappiness": "",
            "tune_sysctl_minimums": {},
            "tune_limits_nofile": {},
            "tune_limits_memlock": {},
            "expected_limits": [],
        },
        [],
    ),
    "limits of a group, and one more line": (
        {
            "tune_limits_domains": ["@ml"],
            "tune_limits_nofile": {"soft": 4096},
            "tune_limits_nproc": {"hard": 65536},
            "tune_limits_memlock": {},
            "tune_limits_entries": [{"domain": "alice", "type": "-", "item": "core", "value": "unlimited"}],
            "expected_limits": ["@ml soft nofile 4096", "@ml hard nproc 65536", "alice - core unlimited"],
        },
        DEFAULTS,
    ),
    "services, the manager and slices": (
        {
            "tune_limits_services": [{"name": "slurmd.service", "memlock": "infinity", "nofile": "65536:524288"}],
            "tune_limits_manager": {"nofile": 4096},
            "tune_slices_reserve": "10%",
            "tune_slices_definitions": [
                {
                    "name": "gpu.slice",
                    "memory_max": "reserve",
                    "memory_swap_max": 0,
                    "tasks_max": "",
                    "cpu_quota": "400%",
                },
                {"name": "docker.service", "oom_score_adjust": -900, "restart": False},
            ],
            "expected_units": [
                "slurmd.service LimitMEMLOCK=infinity",
                "slurmd.service LimitNOFILE=65536:524288",
                "manager DefaultLimitNOFILE=4096",
                "gpu.slice MemoryMax=reserve:10%",
                "gpu.slice MemorySwapMax=0",
                "gpu.slice CPUQuota=400%",
                "docker.service OOMScoreAdjust=-900",
            ],
        },
        DEFAULTS,
    ),
    "the launcher with defaults and a rule": (
        {
            "tune_numa_environment": {"NCCL_DEBUG": "WARN"},
            "tune_numa_slice": "gpu-jobs.slice",
            "tune_numa_polkit_group": "ml",
            "expected_files": [
                "/usr/local/bin/gpu-run",
                "/etc/gpu-fleet/gpu-run.json",
                "/etc/polkit-1/rules.d/50-gpu-fleet-tune_numa.rules",
            ],
        },
        DEFAULTS,
    ),
    "F26: the launcher with a library that each host has to have": (
        {
            "tune_numa_environment": {"LD_PRELOAD": "jemalloc:/opt/libx.so"},
            "expected_files": ["/usr/local/bin/gpu-run", "/etc/gpu-fleet/gpu-run.json"],
            "expected_libraries": ["jemalloc", "/opt/libx.so"],
        },
        DEFAULTS,
    ),
    "a memory limit beside a GPU that shares the memory": (
        {
            "tuning_look": {"ansible_facts": {"gpu_fleet_gpu": {"gpus": [{"memory": {"unified": True}}]}}},
            "expected_caveats": ["MemoryMax"],
        },
        DEFAULTS,
    ),
    "no launcher": ({"tune_numa_launcher_path": "", "expected_files": []}, DEFAULTS),
    "never brings shared memory along": (
        {"tune_thp_enabled": "never", "tune_thp_defrag": ""},
        [
            ("sysfs", f"{THP}/enabled", "never", "never"),
            ("sysfs", f"{THP}/shmem_enabled", "never", "never"),
            *DEFAULTS[2:],
        ],
    ),
    "never with shared memory named": (
        {"tune_thp_enabled": "never", "tune_thp_defrag": "", "tune_thp_shmem_enabled": "advise"},
        [
            ("sysfs", f"{THP}/enabled", "never", "never"),
            ("sysfs", f"{THP}/shmem_enabled", "advise", "never"),
            *DEFAULTS[2:],
        ],
    ),
    "khugepaged and sizes": (
        {
            "tune_thp_khugepaged": {"max_ptes_none": 0, "defrag": 1},
            "tune_thp_sizes": {"64kB": "madvise", "2048kB": "inherit"},
        },
        [
            *DEFAULTS[:2],
            ("sysfs", f"{THP}/hugepages-64kB/enabled", "madvise", "never"),
            ("sysfs", f"{THP}/hugepages-2048kB/enabled", "inherit", "never"),
            ("sysfs", f"{THP}/khugepaged/max_ptes_none", "0", None),
            ("sysfs", f"{THP}/khugepaged/defrag", "1", None),
            *DEFAULTS[2:],
        ],
    ),
    "values, floors and consent": (
        {
            "tune_sysctl_values": {"vm.swappiness": 1, "kernel.sem": "250\t32000", "kernel.kexec_load_disabled": 1},
            "tune_sysctl_minimums": {"net.core.somaxconn": 4096},
            "tune_sysctl_one_way": ["kernel.kexec_load_disabled"],
        },
        [
            *DEFAULTS[:2],
            ("sysctl", "vm.swappiness", "1", None),
            ("sysctl", "kernel.sem", "250\t32000", None),
            ("sysctl", "kernel.kexec_load_disabled", "1", "one_way"),
            ("sysctl", "net.core.somaxconn", "4096", "at_least"),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_roles_declare(case: str, tmp_path: Path) -> None:
    variables, expected = CASES[case]
    answer = tmp_path / "sets.json"
    options = ["-e", json.dumps({**variables, "answer": str(answer)}), "-c", "local", "-i", "localhost,"]
    interpreter = ["-e", f"ansible_python_interpreter={sys.executable}"]
    done = subprocess.run(
        [sys.executable, "-m", "ansible.cli.playbook", *options, *interpreter, str(HERE / "sets.yml")],
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".ansible" / "collections"), "LC_ALL": "C.UTF-8"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sets = json.loads(answer.read_text())
    assert [one["name"] for one in sets] == ["tune_thp", "tune_sysctl", "tune_limits", "tune_slices", "tune_numa"]
    thp, sysctl, limits, slices, numa = sets
    assert [one["path"] for one in numa["files"]] == variables.get("expected_files", ["/usr/local/bin/gpu-run"])
    needed = [word for one in numa["files"] for word in one.get("libraries", [])]
    assert needed == variables.get("expected_libraries", [])
    caveats = [one["property"] for one in slices["units"] if one.get("caveat")]
    assert caveats == variables.get("expected_caveats", [])
    rows = [("sysfs", one["path"], str(one["value"]), one.get("when_missing")) for one in thp["sysfs"]]
    rows += [("sysctl", one["key"], str(one["value"]), _rule(one)) for one in sysctl["sysctl"]]
    assert sorted(rows, key=str) == sorted(expected, key=str)
    lines = [" ".join(str(one[key]) for key in ("domain", "type", "item", "value")) for one in limits["limits"]]
    assert sorted(lines) == sorted(variables.get("expected_limits", LIMITS))
    units = [f"{one['unit']} {one['property']}={one['value']}" for one in limits["units"] + slices["units"]]
    assert units == variables.get("expected_units", ["gpu-jobs.slice MemoryMax=reserve"])


def _rule(one: dict[str, Any]) -> str | None:
    return "one_way" if one.get("one_way") else one.get("rule")

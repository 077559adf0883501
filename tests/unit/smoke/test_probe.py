# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe on this very host, with torch on the CPU: what a host without a GPU gets, and each way to fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import _floors, _gpus, _ship
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._model import Gpus
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe import _cgroup

from .conftest import Smoke, rows

GPU_CHECKS = {"allocator", "fill", "out_of_memory", "bandwidth", "fragmentation"}
LOADER: dict[str, Any] = {"workers": 2, "batch_mib": 0.1, "shared_tensors": 16, "timeout": 18}
FAKE_CUDA = Path(__file__).with_name("fake_cuda.py")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and control groups need root")
no_gpu = pytest.mark.skipif(_gpus.on_pci() > 0, reason="this host has a GPU, and the promise is about hosts without")


def left() -> set[str]:
    return {
        name for place in ("/tmp", "/dev/shm") for name in os.listdir(place) if "gpu-fleet" in name or "torch_" in name
    }


@no_gpu
def test_a_host_without_a_gpu(smoke: Smoke, torch_python: str) -> None:
    before = left()
    result = smoke(torch_python, launcher=["nice"])
    assert result["verdict"] in ("pass", "warn"), result["msg"]
    skipped = rows(result, "skip")
    assert set(skipped) >= GPU_CHECKS | {"pinned.charge", "training.gpu", "collectives.nccl", "environment.gpus"}
    assert all("no NVIDIA GPU" in row["reason"] for row in skipped.values())
    passed = {row["check"] for row in rows(result, "pass").values()}
    assert passed == {"environment", "huge_pages", "pinned", "training", "dataloader", "collectives"}
    assert left() == before
    assert result["previous"] is None
    assert json.loads(Path(result["kept"]).read_text(encoding="utf-8"))["verdict"] == result["verdict"]


@pytest.mark.parametrize(("soft", "verdict"), [(256, "fail"), (4096, "pass")])
def test_f27_open_files(smoke: Smoke, torch_python: str, soft: int, verdict: str) -> None:
    own = {**LOADER, "shared_tensors": 2000, "start_method": "spawn"}
    result = smoke(torch_python, {"dataloader": own}, launcher=["prlimit", f"--nofile={soft}:4096"])
    assert result["verdict"] == verdict
    if verdict == "fail":
        row = rows(result, "fail")["dataloader.workers"]
        assert row["threshold_source"] == "nofile" and "soft 256, hard 4096, in use" in row["reason"]
        assert "nofile" in row["action"]


@needs_root
def test_a_tiny_dev_shm(smoke: Smoke, torch_python: str) -> None:
    script = 'mount -t tmpfs -o size=4m tmpfs /dev/shm && exec "$@"'
    launcher = ["unshare", "-m", "sh", "-c", script, "sh"]
    result = smoke(torch_python, {"dataloader": {**LOADER, "batch_mib": 8.0}}, launcher=launcher)
    row = rows(result, "fail")["dataloader.workers"]
    assert row["threshold_source"] == "/dev/shm" and "4 MiB in all" in row["reason"] and "/dev/shm" in row["action"]


@needs_root
def test_too_few_processes(smoke: Smoke, torch_python: str) -> None:
    # Root has no limit on processes; a plain user may not be able to read the interpreter of this test.
    reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    launcher = ["setpriv", "--reuid=65534", "--clear-groups", *reading, "prlimit", "--nproc=1"]
    result = smoke(torch_python, {"dataloader": LOADER}, launcher=launcher, environment={"OMP_NUM_THREADS": "1"})
    row = rows(result, "fail")["dataloader.workers"]
    assert row["reason"].startswith("nproc limit: soft 1, hard 1") and "nproc" in row["action"]


@pytest.fixture
def tight() -> Iterator[str]:
    """Make a memory control group of 500 MiB, of the version that this host has."""
    own = _cgroup.levels("memory")
    if os.geteuid() != 0 or not own:
        pytest.skip("a memory control group cannot be made here")
    version = own[0].version
    parent = _cgroup.MOUNT if version == 2 else f"{_cgroup.MOUNT}/memory"
    if version == 2 and "memory" not in (_cgroup.text(f"{parent}/cgroup.subtree_control") or ""):
        pytest.skip("the memory controller is not handed down by the root control group")
    folder = Path(parent, f"gpu-fleet-test-{os.getpid()}")
    folder.mkdir()
    (folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(str(500 << 20))
    yield str(folder)
    folder.rmdir()


@pytest.fixture
def few_tasks() -> Iterator[str]:
    """Make a control group for two tasks."""
    own = _cgroup.levels("pids")
    parent = Path(_cgroup.MOUNT) if own and own[0].version == 2 else Path(_cgroup.MOUNT, "pids")
    if (
        os.geteuid() != 0
        or not own
        or (own[0].version == 2 and "pids" not in (parent / "cgroup.subtree_control").read_text())
    ):
        pytest.skip("a control group that limits tasks cannot be made here")
    folder = parent / f"gpu-fleet-test-{os.getpid()}"
    folder.mkdir()
    (folder / "pids.max").write_text("2")
    yield str(folder)
    folder.rmdir()


def test_too_few_tasks(smoke: Smoke, torch_python: str, few_tasks: str) -> None:
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    result = smoke(torch_python, {"dataloader": LOADER}, cgroups=[few_tasks], environment=environment)
    row = rows(result, "fail")["dataloader.workers"]
    assert f"pids limit of /{Path(few_tasks).name}: 2" in row["reason"] and "TasksMax" in row["action"]


def test_f15_killed_by_the_limit_of_the_slice(smoke: Smoke, torch_python: str, tight: str) -> None:
    result = smoke(torch_python, {"pinned": {"touch_mib": 1024}, "environment": {}}, cgroups=[tight])
    row = rows(result, "fail")["pinned"]
    assert f"memory limit of /{Path(tight).name}" in row["reason"] and "oom_kill rose by 1" in row["reason"]
    assert row["observed"] == "killed" and "MemoryMax" in row["action"]
    assert "environment.process" in rows(result, "pass")
    assert (Path(tight) / "cgroup.procs").read_text() == ""


def test_too_much_is_foreseen(smoke: Smoke, torch_python: str, tight: str) -> None:
    result = smoke(torch_python, {"pinned": {"mib": 512}}, cgroups=[tight])
    row = rows(result, "fail")["pinned.foreseen"]
    assert row["expected"] == 512 << 20 and "would be killed" in row["reason"] and Path(tight).name in row["action"]
    assert "killed" not in [one["observed"] for one in result["checks"]]


def test_declared_limits_are_those_of_the_process(smoke: Smoke, torch_python: str) -> None:
    expect = {"limits": {"memlock": "unlimited", "nofile": 256}, "environment": {"NCCL_DEBUG": "WARN"}}
    launcher = ["prlimit", "--memlock=65536:65536"]
    result = smoke(torch_python, {"environment": {}}, launcher=launcher, expect=expect)
    failed = rows(result, "fail")
    assert set(failed) == {"environment.limits.memlock", "environment.NCCL_DEBUG"}
    assert failed["environment.limits.memlock"]["observed"] == "65536"
    assert "LimitMEMLOCK" in failed["environment.limits.memlock"]["action"]


def fake(torch_python: str, folder: Path, check: str, fault: str) -> list[dict[str, Any]]:
    """Run one function of the probe on a stand-in for CUDA."""
    folder.mkdir()
    _ship.write(str(folder))
    command = [torch_python, str(FAKE_CUDA), str(folder), check, fault]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("check", "fault"), [("fill", "poison"), ("leak", "leak")])
def test_a_faulty_gpu_fails(torch_python: str, tmp_path: Path, check: str, fault: str) -> None:
    good = fake(torch_python, tmp_path / "good", check, "none")[-1]
    assert good["status"] == "pass", good
    bad = fake(torch_python, tmp_path / "bad", check, fault)[-1]
    assert bad["status"] == "fail" and bad["action"]
    if check == "fill":
        assert bad["observed"] == 9 and "first in block 0 of 3" in bad["reason"]


def test_a_slow_copy_fails(torch_python: str, tmp_path: Path) -> None:
    gpus = Gpus(1, ("NVIDIA H200",), (63.0,))
    figures = fake(torch_python, tmp_path / "slow", "copy", "slow")
    row = _floors.judge(figures, gpus, {})[0]
    assert row["status"] == "fail" and row["observed"] < 1 and row["expected"] == 50.4 and "link" in row["action"]


def test_the_probe_needs_nothing_of_ansible(tmp_path: Path) -> None:
    _ship.write(str(tmp_path))
    code = "import sys; sys.path.insert(0, sys.argv[1]); import gpu_fleet_probe._main; "
    code += "print([name for name in sys.modules if 'ansible' in name])"
    done = subprocess.run([sys.executable, "-I", "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

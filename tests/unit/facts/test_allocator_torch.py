# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each torch on the host without importing it, and the allocator string that its jobs get (F25)."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _configuration, _torch, _wheels
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._figures import Missing
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Options, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host

STRINGS = yaml.safe_load((Path(__file__).parent / "cases" / "allocator_strings.yml").read_text(encoding="utf-8"))
VERSION = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'xpu']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
git_version = '1eba9b3aa3c43f86f4a2c807ac8e12c4a7767340'
hip: Optional[str] = {hip!r}
"""
METADATA = """Metadata-Version: 2.1
Name: torch
Requires-Dist: filelock
Requires-Dist: nvidia-cudnn-cu12==9.1.0.70; platform_system == "Linux" and platform_machine == "x86_64"
Requires-Dist: nvidia-nccl-cu12 (==2.21.5) ; platform_system == "Linux"
"""
NEVER = "raise SystemExit('torch was imported')\n"


def matches(parts: list[str], sentences: list[str]) -> bool:
    return len(parts) == len(sentences) and all(part in sentence for part, sentence in zip(parts, sentences))


@pytest.mark.parametrize("case", STRINGS, ids=lambda case: f"{case['text']}-{case.get('torch', '')}")
def test_f25_strings(case: dict[str, Any]) -> None:
    torch = tuple(case["torch"]) if "torch" in case else None
    kernel = tuple(case["kernel"]) if "kernel" in case else None
    assert matches(case.get("refused", []), _configuration.problems(case["text"], torch))
    where = _configuration.Where(torch, kernel, case.get("ptrace"))
    assert matches(case.get("warned", []), _configuration.concerns(case["text"], where))
    assert "normal" not in case or _configuration.normal(case["text"]) == case["normal"]


@pytest.mark.parametrize(
    ("torch", "hip", "names"),
    [
        ((2, 8, 0), False, ("PYTORCH_CUDA_ALLOC_CONF",)),
        ((2, 9, 1), False, ("PYTORCH_CUDA_ALLOC_CONF",)),
        ((2, 10), False, ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")),
        ((2, 8), True, ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")),
        (None, False, ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")),
    ],
)
def test_the_variables_that_a_version_reads(torch: tuple[int, ...], hip: bool, names: tuple[str, ...]) -> None:
    assert _configuration.names(torch, hip) == names


@pytest.mark.parametrize(
    ("given", "torch", "said"),
    [
        ({"PYTORCH_ALLOC_CONF": "a"}, (2, 9, 1), ["PYTORCH_ALLOC_CONF: is not read by this torch"]),
        ({"PYTORCH_ALLOC_CONF": "a"}, (2, 10), []),
        ({"PYTORCH_ALLOC_CONF": "a", "PYTORCH_CUDA_ALLOC_CONF": "a"}, (2, 10), []),
        ({"PYTORCH_ALLOC_CONF": "a", "PYTORCH_CUDA_ALLOC_CONF": "b"}, (2, 10), ["PYTORCH_CUDA_ALLOC_CONF, which wins"]),
        ({"PYTORCH_HIP_ALLOC_CONF": "a"}, (2, 10), ["PYTORCH_HIP_ALLOC_CONF: is not read"]),
        ({}, (2, 10), []),
    ],
)
def test_variables_that_are_set_in_vain(given: dict[str, str], torch: tuple[int, ...], said: list[str]) -> None:
    assert matches(said, _configuration.unread(given, torch, False))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.6.0+cu124", (2, 6, 0)),
        ("2.10.0a0+git1", (2, 10, 0)),
        ("6.1.0-18-amd64", (6, 1, 0)),
        ("x", None),
        (None, None),
    ],
)
def test_versions_are_numbers(text: str | None, version: tuple[int, ...] | None) -> None:
    assert _configuration.version(text) == version


# -- files -------------------------------------------------------------------------------------------------------------


def site(folder: Path, version: str = "2.6.0+cu124", cuda: str | None = "12.4", hip: str | None = None) -> Path:
    """Make a folder of packages with a torch that must not be imported."""
    files = {
        "torch/__init__.py": NEVER,
        "torch/version.py": VERSION.format(version=version, cuda=cuda, hip=hip),
        "torch/lib/libc10.so": "\x7fELF and so on",
        f"torch-{version}.dist-info/METADATA": METADATA if cuda else "Name: torch\n",
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def package(folder: Path, name: str) -> None:
    (folder / f"{name}.dist-info").mkdir(parents=True, exist_ok=True)


def scene(seconds: float = 10.0, **options: Any) -> Scene:
    return Scene(Host(), Options(**options), time.monotonic() + seconds)


def row(folder: Path, **environment: str) -> dict[str, Any]:
    """Ask this very Python about the torch in a folder."""
    variables = {"PYTHONPATH": str(folder), **environment}
    return _torch.gather(scene(interpreters=(sys.executable,), environment=variables))[0]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)


def test_torch_is_read_and_not_imported(tmp_path: Path) -> None:
    folder = site(tmp_path)
    package(folder, "nvidia_nccl_cu12-2.21.5")
    package(folder, "nvidia_cudnn_cu12-9.1.0.70")
    found = row(folder)
    assert (found["version"], found["cuda"], found["hip"]) == ("2.6.0+cu124", "12.4", None)
    assert (found["nccl"], found["nccl_required"]) == ("2.21.5", "2.21.5")
    assert (found["cudnn"], found["cudnn_required"]) == ("9.1.0.70", "9.1.0.70")
    assert (found["cpu_tensors"], found["malloc"]["name"], found["imported"]) == ("malloc", "glibc", None)
    assert found["reasons"]["hip"] == "this torch was built without HIP"
    assert found["reason"] is None and found["folder"] == str(folder / "torch")


def test_libraries_that_are_built_in_are_null_with_a_way_to_know(tmp_path: Path) -> None:
    found = row(site(tmp_path, "1.9.0+cu111", "11.1"))
    assert (found["nccl"], found["cudnn"]) == (None, None)
    assert "import_torch tells" in found["reasons"]["nccl"]


def test_two_libraries_of_one_name_are_not_guessed(tmp_path: Path) -> None:
    folder = site(tmp_path)
    package(folder, "nvidia_nccl_cu12-2.21.5")
    package(folder, "nvidia_nccl_cu11-2.20.5")
    found = row(folder)
    assert found["nccl"] is None and "nvidia_nccl_cu11-2.20.5.dist-info and" in found["reasons"]["nccl"]


def test_conda_keeps_versions_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "nccl-2.21.5.1-h3a97aeb_0.json").write_text("{}", encoding="utf-8")
    found = _wheels.library(Host(), [str(tmp_path)], str(tmp_path), "nccl")
    assert not isinstance(found, Missing) and found[0] == "2.21.5.1"


def test_a_build_without_gpu_support_has_no_allocator_in_use(tmp_path: Path) -> None:
    found = row(site(tmp_path, "2.13.0+cpu", None), PYTORCH_ALLOC_CONF="max_split_size_mb:64")
    allocator = found["allocator"]
    assert (found["cuda"], found["nccl"], allocator["backend"], allocator["caching"]) == (None, None, None, None)
    assert allocator["reason"] == _torch.UNUSED and allocator["valid"] is True
    assert found["reasons"]["nccl"] == "this torch has no nccl"


def test_a_torch_that_carries_mimalloc_says_so(tmp_path: Path) -> None:
    folder = site(tmp_path)
    (folder / "torch/lib/libc10.so").write_bytes(b"\x7fELF\x00mi_heap_malloc\x00")
    assert row(folder)["cpu_tensors"] == "mimalloc"
    (folder / "torch/lib/libc10.so").unlink()
    found = row(folder)
    assert found["cpu_tensors"] is None and "cannot be read" in found["reasons"]["cpu_tensors"]


@pytest.mark.parametrize(
    ("version", "environment", "expected"),
    [
        ("2.6.0", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, ("PYTORCH_CUDA_ALLOC_CONF", True, "native")),
        ("2.6.0", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, (None, None, "native")),
        ("2.9.1", {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, (None, None, "native")),
        ("2.10.0", {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, ("PYTORCH_ALLOC_CONF", True, "cudaMallocAsync")),
        (
            "2.0.1",
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            ("PYTORCH_CUDA_ALLOC_CONF", False, "native"),
        ),
        ("2.9.1", {}, (None, None, "native")),
    ],
)
def test_the_configuration_in_force(
    tmp_path: Path, version: str, environment: dict[str, str], expected: tuple[Any, ...]
) -> None:
    allocator = row(site(tmp_path, version), **environment)["allocator"]
    assert (allocator["variable"], allocator["valid"], allocator["backend"]) == expected
    assert allocator["source"] == ("option environment" if expected[0] else None)
    assert (allocator["reason"] == _torch.UNSET) is (expected[0] is None)
    assert bool(allocator["problems"]) is (expected[1] is False)


def test_caching_can_be_off(tmp_path: Path) -> None:
    folder = site(tmp_path)
    assert row(folder)["allocator"]["caching"] is True
    assert row(folder, PYTORCH_NO_CUDA_MEMORY_CACHING="1")["allocator"]["caching"] is False


# -- interpreters ------------------------------------------------------------------------------------------------------


def program(path: Path, content: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_each_named_interpreter_has_a_row_with_the_reason(tmp_path: Path) -> None:
    names = (
        str(tmp_path / "gone"),
        program(tmp_path / "no-python", "#!/bin/sh\necho hello\n"),
        program(tmp_path / "broken", "#!/bin/sh\necho 'no module named encodings' >&2; exit 1\n"),
        program(tmp_path / "without", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n'),
    )
    rows = _torch.gather(scene(interpreters=names))
    assert [one["version"] for one in rows] == [None] * 4
    reasons = [one["reason"].replace(f"{tmp_path}/", "") for one in rows]
    assert reasons == [
        "gone: is no program here",
        "no-python: did not answer as a Python does",
        "broken: exit status 1 (no module named encodings)",
        "without: has no torch",
    ]
    assert rows[3]["python"] == ".".join(map(str, sys.version_info[:3])) and "python" not in rows[3]["reasons"]


def test_an_interpreter_that_hangs_costs_no_other(tmp_path: Path) -> None:
    hung = program(tmp_path / "hung", "#!/bin/sh\ntrap '' TERM\nsleep 60\n")
    folder = site(tmp_path / "site")
    options = {"interpreters": (hung, sys.executable), "environment": {"PYTHONPATH": str(folder)}}
    began = time.monotonic()
    rows = _torch.gather(scene(3.0, **options))
    assert time.monotonic() - began < 3.5
    assert rows[0]["reason"] == f"{hung}: gave no answer within the time"
    assert rows[1]["version"] == "2.6.0+cu124"


def test_what_python_prints_at_its_start_is_not_the_answer(tmp_path: Path) -> None:
    folder = site(tmp_path)
    (folder / "sitecustomize.py").write_text("print('{\"hello\": 1}')\n", encoding="utf-8")
    assert row(folder)["version"] == "2.6.0+cu124"


def test_f26_a_missing_preload_spoils_no_answer(tmp_path: Path) -> None:
    folder = site(tmp_path)
    found = row(folder, LD_PRELOAD="/nonexistent/libjemalloc.so.2")
    assert found == {**row(folder), "reasons": found["reasons"]}
    assert found["malloc"]["name"] == "glibc"


def test_the_usual_places_give_each_torch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = site(tmp_path / "site")
    script = f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n'
    places = [program(tmp_path / name, script) for name in ("one", "two")]
    without = program(tmp_path / "without", f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    monkeypatch.setattr(_torch._interpreter, "PLACES", (*places, without, "/nonexistent/python"))
    monkeypatch.setattr(sys, "executable", without)
    assert [one["interpreter"] for one in _torch.gather(scene())] == places[:1]


def test_root_does_not_run_what_others_put_into_a_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    path = program(tmp_path / "bin" / "python3", f"#!/bin/sh\ntouch {ran}\n")
    if os.geteuid() == 0:
        os.chown(tmp_path / "bin", 65534, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(_torch._interpreter, "PLACES", (path,))
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    row = _torch.gather(scene())[0]
    assert "so root does not run it unasked" in row["reason"] and row["folder"] is None
    assert not ran.exists()
    assert _torch.gather(scene(interpreters=(path,)))[0]["reason"] == f"{path}: did not answer as a Python does"
    assert ran.exists()


def test_an_imported_torch_tells_more(tmp_path: Path) -> None:
    folder = site(tmp_path, "1.9.0", "11.4")
    torch = "class cuda:\n    class nccl:\n        version = staticmethod(lambda: (2, 9, 6))\n"
    torch += "class _C:\n    class _cudnn:\n        getRuntimeVersion = staticmethod(lambda: (8, 9, 2))\n"
    torch += "from . import version\n__version__ = version.__version__\n"
    (folder / "torch" / "__init__.py").write_text(torch, encoding="utf-8")
    options = {"interpreters": (sys.executable,), "environment": {"PYTHONPATH": str(folder)}, "import_torch": True}
    found = _torch.gather(scene(**options))[0]
    assert (found["nccl"], found["cudnn"]) == ("2.9.6", "8.9.2")
    assert found["imported"]["backend"] is None and found["imported"]["reason"] is None
    (folder / "torch" / "__init__.py").write_text("raise OSError('libcudart.so: cannot open')\n", encoding="utf-8")
    broken = _torch.gather(scene(**options))[0]
    assert broken["version"] == "1.9.0"
    assert "libcudart.so: cannot open" in broken["imported"]["reason"]


@pytest.mark.parametrize(
    ("scope", "status", "limit"),
    [("0", "Seccomp:\t0", None), ("1", "", "ptrace_scope is 1"), ("0", "Seccomp:\t2", "system calls are filtered")],
)
def test_what_limits_sharing(tmp_path: Path, scope: str, status: str, limit: str | None) -> None:
    for name, content in ((_torch.YAMA, scope), ("/proc/self/status", status)):
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    found = _torch.ptrace_limit(Host(str(tmp_path)))
    assert (found is None) if limit is None else limit in str(found)

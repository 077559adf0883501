# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the probe can end: a stand-in for torch hangs, is killed, crashes or cannot be imported, and nothing may stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import _interpreter, _processes, _run, _ship

from .conftest import Smoke, rows

CHECKS: dict[str, Any] = {"environment": {}, "huge_pages": {"timeout": 2}, "pinned": {"mib": 1}}
TORCH = """
import os, signal, subprocess, sys, time
__version__ = "0"
class version: cuda = hip = None
class uint8: pass
class cuda: pass
def hang():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)
def end(number): os.kill(os.getpid(), number)
def leave(): sys.stderr.write("the end of it\\n"); os._exit(3)
def empty(*_size, **_kind): %s
"""


def torch(folder: Path, fault: str, at_import: str = "") -> dict[str, str]:
    """Write a torch that does this when it is asked for a buffer, and return the variables that make it found."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(TORCH % fault + at_import, encoding="utf-8")
    return {"PYTHONPATH": str(folder), "SMOKE_TEST": str(folder)}


def still_there(folder: Path) -> list[str]:
    """Return the processes of this test."""
    wanted, found = f"SMOKE_TEST={folder}".encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    found.append(name)
            except OSError:
                continue
    return found


@pytest.mark.parametrize(
    ("fault", "status", "observed", "reason"),
    [
        ("hang()", "fail", "hung", "during huge_pages: no end within the time limit of this check"),
        ("end(9)", "fail", "SIGKILL", "killed from outside, not by the OOM killer"),
        ("end(11)", "fail", "SIGSEGV", "crashed with SIGSEGV"),
        ("end(7)", "fail", "SIGBUS", "bus error: /dev/shm"),
        ("leave()", "unknown", "exit status 3", "the end of it"),
        ("1 / 0", "unknown", "error", "ZeroDivisionError"),
    ],
)
def test_one_end_takes_one_check_down(
    smoke: Smoke, tmp_path: Path, fault: str, status: str, observed: str, reason: str
) -> None:
    environment = torch(tmp_path, fault)
    started = time.monotonic()
    before = set(os.listdir("/tmp"))
    result = smoke(sys.executable, CHECKS, environment=environment)
    assert time.monotonic() - started < 10
    row = rows(result, status)["huge_pages"]
    assert row["observed"] == observed and reason in row["reason"] and row["action"]
    assert result["verdict"] == status
    assert {"environment.process", "pinned.foreseen"} <= set(rows(result, "pass"))
    assert still_there(tmp_path) == []
    assert not [name for name in set(os.listdir("/tmp")) - before if name.startswith("gpu-fleet-smoke")]


def test_the_whole_test_has_a_limit(smoke: Smoke, tmp_path: Path) -> None:
    result = smoke(sys.executable, CHECKS, environment=torch(tmp_path, "1", "hang()"), timeout=2)
    assert rows(result, "fail")["probe"]["observed"] == "hung"
    assert "while torch was imported" in rows(result, "fail")["probe"]["reason"]
    assert set(rows(result, "unknown")) == set(CHECKS) and rows(result, "pass") == {}
    assert still_there(tmp_path) == []


def test_a_torch_that_cannot_be_imported(smoke: Smoke, tmp_path: Path) -> None:
    environment = torch(tmp_path, "1", "import nothing_of_that_name")
    result = smoke(sys.executable, CHECKS, environment=environment)
    row = rows(result, "unknown")["probe"]
    assert result["verdict"] == "unknown"
    assert "torch cannot be imported" in row["reason"] and "nothing_of_that_name" in row["reason"]


def test_no_interpreter_is_unknown(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run._interpreter, "find", lambda *_options: None)
    result = smoke("", CHECKS)
    assert result["verdict"] == "unknown" and set(rows(result, "unknown")) == set(CHECKS)
    assert all("validate_memory_python" in row["action"] for row in result["checks"])


def test_a_wrong_interpreter_is_one_sentence(smoke: Smoke) -> None:
    with pytest.raises(TuningError, match=r"^python: /nowhere/python is not a Python 3.9 or newer with torch"):
        smoke("/nowhere/python", CHECKS)


def test_f25_a_string_that_stops_every_job_stops_here_first(smoke: Smoke, tmp_path: Path) -> None:
    environment = {**torch(tmp_path, "1"), "PYTORCH_ALLOC_CONF": "expandeable_segments:True"}
    result = smoke(sys.executable, CHECKS, environment=environment)
    assert result["verdict"] == "fail"
    assert "expandable_segments was meant?" in rows(result, "fail")["environment.PYTORCH_ALLOC_CONF"]["reason"]


def test_a_late_command_and_its_child_are_ended(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 1000 & sleep 1000"
    started = time.monotonic()
    assert _processes.ask(["sh", "-c", script], 0.5, {**os.environ, "SMOKE_TEST": str(tmp_path)}) is None
    assert time.monotonic() - started < 5
    time.sleep(0.1)
    assert still_there(tmp_path) == []


def test_what_hides_in_a_session_of_its_own_is_found(tmp_path: Path) -> None:
    environment = {**os.environ, _processes.TOKEN: "hidden", "SMOKE_TEST": str(tmp_path)}
    _processes.ask(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"], 5, environment)
    assert _processes.sweep("hidden") == [] and still_there(tmp_path) == []


WHEEL = {
    "torch.py": "",
    "fake_torch-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: fake-torch\nVersion: 1\n",
    "fake_torch-1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "fake_torch-1.dist-info/RECORD": "torch.py,,\n",
}


def test_an_environment_is_made_only_where_asked_and_from_the_named_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    place = tmp_path / "index" / "fake-torch"
    place.mkdir(parents=True)
    name = "fake_torch-1-py3-none-any.whl"
    with zipfile.ZipFile(place / name, "w") as archive:
        for path, text in WHEEL.items():
            archive.writestr(path, text)
    (place / "index.html").write_text(f'<a href="{name}">{name}</a>')
    venv, index = str(tmp_path / "venv"), (tmp_path / "index").as_uri()
    with pytest.raises(TuningError, match="no index to install it from was named"):
        _interpreter.make(venv, "", ["fake-torch"])
    assert not Path(venv).exists()
    assert _interpreter.make(venv, index, ["fake-torch"]) and _interpreter.has_torch(f"{venv}/bin/python3")
    assert not _interpreter.make(venv, index, ["fake-torch"])
    with pytest.raises(TuningError, match="has no torch after the installation"):
        _interpreter.make(str(tmp_path / "other"), index, ["nothing-of-that-name"])


@pytest.mark.parametrize("compiled", [True, False])
def test_bytecode_is_shared_where_torch_has_none_and_the_user_s_files_are_left_alone(
    tmp_path: Path, compiled: bool
) -> None:
    """In an interpreter of its own: a module that stands for torch, with and without bytecode beside it."""
    package, folder = tmp_path / "site" / "torch", tmp_path / "probe"
    package.mkdir(parents=True)
    folder.mkdir()
    (package / "__init__.py").write_text("answer = 42\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if compiled:
        subprocess.run([sys.executable, "-c", "import torch"], cwd=package.parent, env=clean, check=True)
    _ship.write(str(folder))
    child = "import sys; print(sys.pycache_prefix)"
    code = (
        f"import subprocess, sys; sys.path[:0] = {[str(package.parent), str(folder)]!r}; "
        f"from {_ship.PACKAGE} import _main; _main.keep_bytecode({str(folder)!r}); import torch; "
        f"print(torch.__file__); print(subprocess.check_output([sys.executable, '-c', {child!r}], text=True))"
    )
    before = sorted(path.name for path in package.rglob("*"))
    environment = {**clean, "PYTHONDONTWRITEBYTECODE": "1"}
    told = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).split()
    assert told == [str(package / "__init__.py"), "None" if compiled else str(folder / "bytecode")]
    assert sorted(path.name for path in package.rglob("*")) == before
    assert any((folder / "bytecode").rglob("*.pyc")) is not compiled

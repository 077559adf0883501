# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A machine with GPUs: a fixture root, a stand-in library and a stand-in tool, asked in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .gpu_recording import Recording

FAKES = Path(__file__).resolve().parents[2] / "fake_nvidia"
RECORDINGS = Path(__file__).resolve().parents[1] / "data" / "recordings"
PINS = {"newest": "nvidia-ml-py==13.615.71", "new": "nvidia-ml-py==12.575.51", "old": "pynvml==11.4.1"}
CARD = {"class": "0x030200", "vendor": "0x10de", "device": "0x2335", "numa_node": "-1", "driver": "nvidia"}
GATHER = """
import json, sys
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _collect
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
root, timeout, expected = json.loads(sys.argv[1])
json.dump(_collect.gather(Host(root, live=True), timeout, expected), sys.stdout)
"""


@dataclass
class Machine:
    """One machine below a temporary folder."""

    folder: Path
    python: Path = Path(sys.executable)
    library: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """Where its files stand."""
        return self.folder / "root"

    def put(self, files: Mapping[str, str]) -> None:
        """Write files."""
        for path, content in files.items():
            place = self.root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)

    def plug(self, functions: Sequence[Mapping[str, Any]]) -> None:
        """Put PCI functions in: `way` is the way down to each, `driver` and `physfn` are links, the rest attributes."""
        for given in functions:
            attributes = {**CARD, **given}
            way = attributes.pop("way")
            links = {name: attributes.pop(name, None) for name in ("driver", "physfn")}
            home = f"/sys/devices/{way}"
            self.put({f"{home}/{name}": f"{value}\n" for name, value in attributes.items()})
            link = self.root / "sys/bus/pci/devices" / way.rpartition("/")[2]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"../../../devices/{way}")
            for name, target in links.items():
                if target:
                    (self.root / home.lstrip("/") / name).symlink_to(f"../{target}")

    def nodes(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Give it NUMA nodes: `number`, `cpus`, `kib` and `distances` of each."""
        for row in rows:
            folder = f"/sys/devices/system/node/node{row['number']}"
            self.put({f"{folder}/cpulist": f"{row.get('cpus', '')}\n"})
            self.put({f"{folder}/meminfo": f"Node {row['number']} MemTotal: {row.get('kib', 0)} kB\n"})
            self.put({f"{folder}/distance": f"{row.get('distances', '')}\n"})

    def nvml(self, data: Mapping[str, Any]) -> None:
        """Say what the library answers."""
        lines = "".join(f"{key}={value}\n" for key, value in data.items())
        (self.folder / "nvml.data").write_text(lines)

    def smi(self, data: Mapping[str, Any] | None) -> None:
        """Say what the tool answers; None takes the tool away."""
        (self.folder / "bin").mkdir(exist_ok=True)
        tool = self.folder / "bin" / "nvidia-smi"
        tool.unlink(missing_ok=True)
        if data is not None:
            tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKES / "smi.py"}" "$@"\n')
            tool.chmod(0o755)
            (self.folder / "smi.json").write_text(json.dumps(data))

    def calls(self) -> list[str]:
        """Return the command lines that the tool was called with."""
        place = self.folder / "smi.json.calls"
        return place.read_text().splitlines() if place.exists() else []

    def variables(self) -> dict[str, str]:
        """Return the environment in which it is asked."""
        collections = str(Path(sys.modules["ansible_collections"].__path__[0]).parent)
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": collections,
            "FAKE_NVML_DATA": str(self.folder / "nvml.data"),
            "FAKE_SMI_DATA": str(self.folder / "smi.json"),
            **({"LD_LIBRARY_PATH": str(self.library)} if self.library else {}),
            **self.environment,
        }

    def gather(self, timeout: float = 8.0, expected: int | None = None) -> dict[str, Any]:
        """Ask for the facts."""
        done = subprocess.run(
            [str(self.python), "-c", GATHER, json.dumps([str(self.root), timeout, expected])],
            env=self.variables(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stand-in library and return its folder."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the stand-in for libnvidia-ml.so.1 is made with cc, and there is no C compiler here")
    folder = tmp_path_factory.mktemp("library")
    command = [compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", str(FAKES / "nvml.c")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if "stdio.h" in done.stderr:
        pytest.skip("the stand-in for libnvidia-ml.so.1 needs the C library's headers, and they are not installed here")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def interpreters(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make an environment with one pynvml package, each when it is first asked for."""
    made: dict[str, Path | str] = {}

    def make(age: str) -> Path:
        if age not in made:
            made[age] = _environment(tmp_path_factory.mktemp(age), PINS[age])
        found = made[age]
        if isinstance(found, str):
            pytest.skip(f"{PINS[age]} cannot be installed here, as pip says: {found}")
        return found

    return make


def _environment(folder: Path, pin: str) -> Path | str:
    """Return the interpreter of a new environment with that package, or why there is none."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--target", str(site), pin], capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines()
    return folder / "bin" / "python" if done.returncode == 0 else (lines[-1] if lines else f"exit {done.returncode}")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine without anything: no binding, no library, no tool."""
    made = Machine(tmp_path)
    made.root.mkdir()
    made.put({"/proc/stat": "btime 1700000000\n"})
    made.nvml({})
    made.smi(None)
    return made


@pytest.fixture
def with_library(machine: Machine, library: Path, interpreters: Callable[[str], Path]) -> Machine:
    """Return a machine with the stand-in library and the newer binding."""
    machine.python, machine.library = interpreters("new"), library
    return machine


@pytest.fixture(scope="session")
def recording() -> Recording:
    """Return what an H200 host said."""
    return Recording(RECORDINGS / "h200-580.159.04")

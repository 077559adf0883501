# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The script gpu-fleet on machines with one Python or another, played by stand-ins on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("basename", "cat", "cksum", "cp", "dirname", "ln", "mkdir", "readlink", "rm", "sed", "sh", "sort", "tail")
# Makes an environment in no time and installs nothing; is a Python in all else.
PYTHON_STAND_IN = f"""#!/bin/sh
case "$1 $2" in
  "-m venv") rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  "-m pip") exit 0 ;;
  *) exec "{sys.executable}" "$@" ;;
esac
"""
PLAYBOOK_STAND_IN = '#!/bin/sh\nprintf "%s\\n" "$@"\n'


@dataclass(frozen=True)
class Machine:
    """A checkout of the script beside a PATH that holds only what the test put there."""

    checkout: Path
    programs: Path

    def install(self, name: str, text: str) -> None:
        """Put a program on the PATH."""
        (self.programs / name).write_text(text, encoding="utf-8")
        (self.programs / name).chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run gpu-fleet with nothing of the caller's environment."""
        command = [str(self.checkout / "gpu-fleet"), *arguments]
        variables = {"PATH": str(self.programs), "HOME": str(self.checkout.parent), **environment}
        return subprocess.run(
            command, env=variables, cwd=self.checkout.parent, capture_output=True, text=True, timeout=120, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "a checkout", tmp_path / "bin")
    (made.checkout / "requirements").mkdir(parents=True)
    made.programs.mkdir()
    shutil.copy2(ROOT / "gpu-fleet", made.checkout)
    for minor in (10, 11):
        (made.checkout / "requirements" / f"run-3.{minor}.txt").touch()
    for name in TOOLS:
        os.symlink(shutil.which(name) or name, made.programs / name)
    made.install("id", "#!/bin/sh\necho 0\n")
    made.install("ansible-playbook", PLAYBOOK_STAND_IN)
    return made


def _python(machine: Machine, name: str) -> None:
    """A new enough Python under the given name."""
    machine.install(name, PYTHON_STAND_IN)


def _old_python(machine: Machine) -> None:
    machine.install("python3", "#!/bin/sh\nexit 1\n")


def test_one_sentence_where_python_is_too_old(machine: Machine) -> None:
    _old_python(machine)
    result = machine.run("tune")
    assert result.returncode == 1
    assert result.stderr.startswith("gpu-fleet: python3: 3.10 or newer is needed")
    assert len(result.stderr.splitlines()) == 1
    assert not (machine.checkout / ".venv").exists()


def test_a_newer_python_beside_an_old_one_is_found(machine: Machine) -> None:
    _old_python(machine)
    _python(machine, "python3.12")
    assert machine.run("tune").returncode == 0


def test_dnf_brings_a_newer_python(machine: Machine) -> None:
    _old_python(machine)
    newer, package = machine.programs / "python3.11", machine.checkout.parent / "package"
    package.write_text(PYTHON_STAND_IN, encoding="utf-8")
    package.chmod(0o755)
    machine.install("dnf", f'#!/bin/sh\n[ "$4" = python3.11 ] && cp "{package}" "{newer}"\n')
    result = machine.run("tune")
    assert result.returncode == 0, result.stderr
    assert newer.exists()


def test_a_wrong_choice_of_python_is_named(machine: Machine) -> None:
    result = machine.run("tune", GPU_FLEET_PYTHON="python2")
    assert result.returncode == 1
    assert "GPU_FLEET_PYTHON: python2" in result.stderr


def test_a_missing_venv_module_is_named(machine: Machine) -> None:
    refusal = 'case "$*" in *ensurepip*) exit 1 ;; esac\n'
    machine.install("python3", f'#!/bin/sh\n{refusal}exec "{sys.executable}" "$@"\n')
    result = machine.run("tune")
    assert result.returncode == 1
    assert "install the package python3." in result.stderr


def test_the_playbook_gets_this_machine_unless_told_otherwise(machine: Machine) -> None:
    _python(machine, "python3")
    playbook, inventory = (
        str(machine.checkout / "tune-gpu-nodes.yml"),
        str(machine.checkout / "inventory/localhost.yml"),
    )
    first = machine.run("tune", "--check")
    assert first.stdout.splitlines() == [playbook, "-i", inventory, "--check"]
    second = machine.run("tune", "--inventory", "mine.yml")
    assert second.stdout.splitlines() == [playbook, "--inventory", "mine.yml"]
    assert second.stderr == ""  # set up already: nothing is installed again
    third = machine.run("audit", ANSIBLE_INVENTORY="mine.yml")
    assert third.stdout.splitlines() == [str(machine.checkout / "audit-gpu-nodes.yml")]
    link = machine.checkout / ".ansible/collections/ansible_collections/gpu_fleet/node"
    assert link.resolve() == machine.checkout


def test_changed_pins_and_a_moved_checkout_are_noticed(machine: Machine) -> None:
    _python(machine, "python3")
    assert "making .venv" in machine.run("tune").stderr
    for pins in (machine.checkout / "requirements").glob("run-*.txt"):
        pins.write_text("# changed\n", encoding="utf-8")
    again = machine.run("tune").stderr
    assert "installing run-3." in again
    assert "making .venv" not in again
    moved = Machine(machine.checkout.rename(machine.checkout.with_name("moved")), machine.programs)
    assert "making .venv" in moved.run("tune").stderr


def test_an_unknown_verb_gets_the_usage(machine: Machine) -> None:
    result = machine.run("destroy")
    assert result.returncode == 2
    assert result.stderr.startswith("usage: gpu-fleet tune")

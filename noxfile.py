# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every check of the project as one session each; `./gpu-fleet test` runs them in the environment that it made."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / ".ansible" / "results"
COLLECTIONS = ROOT / ".ansible" / "collections"
NAME = "gpu_fleet.node"
PACKAGE = "ansible_collections.gpu_fleet.node.plugins"
PLAYBOOKS = ("tune_gpu_nodes", "audit_gpu_nodes", "rollback_gpu_nodes", "validate_gpu_nodes")
DOCUMENTED = {"module": "plugins/modules", "lookup": "plugins/lookup", "filter": "plugins/filter", "role": "roles"}
RUN_TIME_FOLDERS = ("meta", "plugins", "roles", "playbooks")

# The oldest supported ansible-core that each Python can run, and the one that requirements/ pins.
OLDEST_CORE = {(3, 13): "2.18", (3, 14): "2.20"}.get(sys.version_info[:2], "2.16")
PINNED_CORE = {(3, 10): "2.17", (3, 11): "2.19"}.get(sys.version_info[:2], "2.21")

# The tests in which Ansible itself takes part; the others are the same whatever its version.
TOUCHES_ANSIBLE = ("modules", "plugins", "roles", "facts", "smoke")

# The oldest Python of a node; no ansible-core from 2.16 on has a controller for it.
FLOOR_PYTHON = "3.9"

nox.options.default_venv_backend = "none"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = [
    "lint", "types", "unit", "docs", "build", "floor", "core_ends", "sanity", "molecule_default",
    "molecule_validate", "molecule_vm", "molecule_vm_v1",
]  # fmt: skip


def _pytest(session: nox.Session, *arguments: str) -> None:
    """Run pytest and leave its counts where tests/tools/summary.py adds them up."""
    report = RESULTS / f"{session.name}.xml"
    session.run("python", "-m", "pytest", f"--junitxml={report}", *arguments, *session.posargs)


def _render_docs(session: nox.Session, collections: Path) -> None:
    """Render the documentation of every plugin and role from the given tree alone."""
    environment = {"ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false"}
    tree = collections / "ansible_collections" / "gpu_fleet" / "node"
    for kind, folder in DOCUMENTED.items():
        names = sorted(f"{NAME}.{path.stem}" for path in (tree / folder).glob("[!_]*") if path.suffix in (".py", ""))
        if names:
            session.run("ansible-doc", "--type", kind, *names, env=environment, silent=True)


def _check_plays(session: nox.Session, collections: Path) -> None:
    """Render the documentation and parse every playbook by its collection name from the given tree alone."""
    environment = {"ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_COLLECTIONS_SCAN_SYS_PATH": "false"}
    _render_docs(session, collections)
    names = [f"{NAME}.{playbook}" for playbook in PLAYBOOKS]
    inventory = str(ROOT / "inventory" / "localhost.yml")
    session.run("ansible-playbook", "--syntax-check", "-i", inventory, *names, env=environment)


@nox.session
def lint(session: nox.Session) -> None:
    """Style of YAML, Ansible content, Python, shell and changelog fragments."""
    session.run("yamllint", "--strict", ".")
    session.run("ansible-lint", "--strict", "--offline")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("antsibull-changelog", "lint")
    session.run("shellcheck", "gpu-fleet", ".ci/run")


@nox.session
def types(session: nox.Session) -> None:
    """Types of everything that is imported: the collection under its own name, the tools by their folder."""
    folders = [name for name in ("module_utils", "modules") if (ROOT / "plugins" / name).is_dir()]
    session.run("mypy", *(word for name in folders for word in ("-p", f"{PACKAGE}.{name}")))
    tools = [name for name in ("tests/lab", "tests/tools", "benchmarks") if (ROOT / name).is_dir()]
    session.run("mypy", "noxfile.py", *tools)


@nox.session
def unit(session: nox.Session) -> None:
    """Laws, parsers and modules on temporary roots."""
    _pytest(session, "tests/unit")


@nox.session(venv_backend="venv", reuse_venv=True)
@nox.parametrize("core", [OLDEST_CORE, PINNED_CORE], ids=[OLDEST_CORE, PINNED_CORE])
def core_ends(session: nox.Session, core: str) -> None:
    """Unit tests, playbooks and an audit of this machine on the oldest and the newest ansible-core for this Python."""
    session.install("--quiet", f"ansible-core=={core}.*", "pytest", "pyyaml")
    if core != PINNED_CORE:  # the session unit has run them on that one
        _pytest(session, *(f"tests/unit/{part}" for part in TOUCHES_ANSIBLE))
    _check_plays(session, COLLECTIONS)
    if os.geteuid() == 0:
        session.run("ansible-playbook", "audit-gpu-nodes.yml", "-i", "inventory/localhost.yml")
    else:
        session.warn("audit: left out, it reads as root and this is an ordinary user")


@nox.session(python=FLOOR_PYTHON, venv_backend="venv", reuse_venv=True)
def floor(session: nox.Session) -> None:
    """The engine's laws on the oldest Python that a node may have, where this machine has one."""
    session.install("--quiet", "ansible-core==2.15.*", "pytest", "pyyaml")
    _pytest(session, "tests/unit/engine", "tests/unit/launcher")


@nox.session
def sanity(session: nox.Session) -> None:
    """All of ansible-test's sanity tests on a copy of the tree."""
    session.run("python", "tests/tools/sanity.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation of every plugin and role renders."""
    _render_docs(session, COLLECTIONS)


@nox.session
def build(session: nox.Session) -> None:
    """The built collection: installed from its archive, and cut down to the folders that a run needs."""
    work = Path(session.create_tmp()).resolve()
    shutil.rmtree(work)
    work.mkdir()
    session.run("ansible-galaxy", "collection", "build", "--output-path", str(work), silent=True)
    archive = next(work.glob("gpu_fleet-node-*.tar.gz"))
    installed = work / "installed"
    options = ("--force", "--offline", "--collections-path", str(installed))
    session.run("ansible-galaxy", "collection", "install", *options, str(archive), silent=True)
    _check_plays(session, installed)
    source, bare = (work / name / "ansible_collections" / "gpu_fleet" / "node" for name in ("installed", "bare"))
    for folder in RUN_TIME_FOLDERS:
        shutil.copytree(source / folder, bare / folder)
    _check_plays(session, work / "bare")


def _molecule(session: nox.Session, scenario: str) -> None:
    """Run one scenario; podman takes its settings from the project's own file."""
    environment = {
        "CONTAINERS_CONF": str(ROOT / "molecule" / "containers.conf"),
        "MOLECULE_GLOB": "molecule/*/molecule.yml",
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        "PYTEST_ADDOPTS": f"--junitxml={RESULTS / session.name}.xml",
    }
    session.run("molecule", "test", "--scenario-name", scenario, *session.posargs, env=environment)


@nox.session
def molecule_default(session: nox.Session) -> None:
    """The playbooks on containers with systemd."""
    _molecule(session, "default")


@nox.session
def molecule_validate(session: nox.Session) -> None:
    """The smoke test with a real torch in a container, alone and in a slice whose limit the kernel does not have."""
    _molecule(session, "validate")


@nox.session
def molecule_vm(session: nox.Session) -> None:
    """The playbooks on a virtual machine with its own kernel, through reboots."""
    _molecule(session, "vm")


@nox.session
def molecule_vm_v1(session: nox.Session) -> None:
    """Slices and limits on a virtual machine whose memory controller is cgroup v1."""
    _molecule(session, "vm_v1")


@nox.session(venv_backend="venv", reuse_venv=True)
def lock(session: nox.Session) -> None:
    """Export the pins of requirements/ anew for each Python; not part of a test run."""
    session.install("--quiet", "uv")
    common = ("--quiet", "--upgrade", "--no-header", "--no-emit-index-url", "--no-annotate")
    for python in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        tests, run = f"requirements/test-{python}.txt", f"requirements/run-{python}.txt"
        compile_ = ("uv", "pip", "compile", *common, "--python-version", python)
        session.run(*compile_, "requirements/test.in", "-o", tests)
        session.run(*compile_, "requirements/run.in", "-c", tests, "-o", run)

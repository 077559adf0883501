# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The test lab composes machines, ssh settings and inventories as asked, and names its image after its recipe."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import hosts
import image
import machine
import pytest


@pytest.fixture(autouse=True)
def _own_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the hosts of these tests apart from real ones."""
    monkeypatch.setattr(hosts, "RUN", tmp_path / "run")


def words(**given: Any) -> str:
    """Compose a machine and return its command as one line."""
    composed = machine.command(machine.Machine("m", **given), Path("/files"), Path("/run"), 2222)
    return " ".join(composed)


def test_two_nodes_share_the_processors_and_the_memory() -> None:
    line = words(nodes=2, cpus=2, memory=512)
    assert "-smp 4,sockets=2,cores=2 -m 1024M" in line
    assert "-numa node,nodeid=0,cpus=0-1,memdev=m0" in line
    assert "-numa node,nodeid=1,cpus=2-3,memdev=m1" in line
    assert line.count("memory-backend-ram") == 2


def test_a_node_without_memory_has_cpus_of_its_own() -> None:
    line = words(nodes=2, cpus=1, memoryless=1)
    assert "-smp 3,sockets=3,cores=1 -m 2048M" in line and line.count("memory-backend-ram") == 2
    assert line.rstrip().count("-numa node,nodeid=2,cpus=2-2") == 1 and "memdev=m2" not in line


def test_image_stays_clean_and_only_this_machine_reaches_the_port() -> None:
    assert "file=/run/disk.img" in words()
    assert "hostfwd=tcp:127.0.0.1:2222-:22" in words()


@pytest.mark.parametrize(("cgroup", "there"), [("v1", True), ("v2", False)])
def test_kernel_line_names_the_cgroup_version(cgroup: str, there: bool) -> None:
    line = words(cgroup=cgroup, append="transparent_hugepage=never")
    assert ("systemd.unified_cgroup_hierarchy=0" in line) is there
    assert "transparent_hugepage=never" in line


def test_host_is_reached_by_its_name_alone() -> None:
    path = hosts.create("m", Path("/key"), {"HostName": "127.0.0.1", "Port": "2222"})
    settings = (path / "ssh_config").read_text(encoding="utf-8")
    assert settings.startswith("Host m\n")
    assert "  HostName 127.0.0.1\n  Port 2222\n" in settings
    known = json.loads((path / "inventory.yml").read_text(encoding="utf-8"))
    variables = known["all"]["children"]["gpu_nodes"]["hosts"]["m"]
    assert variables["ansible_ssh_common_args"] == f"-F '{path.parent / 'ssh_config'}'"
    assert (path.parent / "ssh_config").read_text(encoding="utf-8") == f'Include "{path.parent}/*/ssh_config"\n'


def test_foreign_process_is_not_taken_for_the_machine() -> None:
    path = hosts.create("m", Path("/key"), {})
    (path / "pid").write_text(str(os.getpid()), encoding="ascii")
    assert machine.pid_of("m") is None
    machine.down("m", 0)
    assert not path.exists()


def test_recipe_names_the_image(tmp_path: Path) -> None:
    (tmp_path / "packages").write_text("# a comment\nsystemd\n\n udev \n", encoding="utf-8")
    first = image.recipe_key(tmp_path, b"key")
    assert image.packages(tmp_path) == ["systemd", "udev"]
    assert image.recipe_key(tmp_path, b"key") == first
    assert image.recipe_key(tmp_path, b"other") != first
    (tmp_path / "packages").write_text("systemd\n", encoding="utf-8")
    assert image.recipe_key(tmp_path, b"key") != first


def test_missing_tools_are_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    with pytest.raises(SystemExit, match=r"^the test lab needs these Debian packages or their like: one two$"):
        image.ensure_tools({"no-such-tool": "two", "nor-this": "one", "sh": "dash"})
    image.ensure_tools({"sh": "dash"})


def test_silent_host_ends_in_one_sentence() -> None:
    hosts.create("m", Path("/key"), {"ProxyCommand": "false"})
    with pytest.raises(SystemExit, match=r"^m did not answer within 1 s: "):
        hosts.wait("m", 1)

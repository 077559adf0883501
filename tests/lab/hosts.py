# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep what is known about the test hosts that are up: a folder each, the way to reach them by ssh, an inventory."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import image

RUN = image.CACHE / "run"

SSH_CONFIG = """\
Host {name}
  User root
  IdentityFile "{key}"
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
  ConnectTimeout 120
  ServerAliveInterval 30
  ServerAliveCountMax 10
  {route}
"""


def folder(name: str) -> Path:
    """Name the folder of a host."""
    return RUN / name


def ssh_config(name: str, key: Path, route: dict[str, str]) -> str:
    """Render the ssh settings of a host; time limits are generous because a busy machine answers late."""
    return SSH_CONFIG.format(name=name, key=key, route="\n  ".join(f"{word} {value}" for word, value in route.items()))


def inventory(names: list[str]) -> str:
    """Render an inventory, JSON being YAML, of hosts that are reached through their ssh settings."""
    hosts = {
        name: {
            "ansible_ssh_common_args": f"-F '{RUN / 'ssh_config'}'",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        for name in names
    }
    return json.dumps({"all": {"children": {"gpu_nodes": {"hosts": hosts}}}}, indent=2) + "\n"


def create(name: str, key: Path, route: dict[str, str]) -> Path:
    """Make the folder of a new host; one `ssh_config` above the folders knows all hosts."""
    path = folder(name)
    path.mkdir(parents=True, exist_ok=True)
    (RUN / "ssh_config").write_text(f'Include "{RUN}/*/ssh_config"\n', encoding="utf-8")
    (path / "ssh_config").write_text(ssh_config(name, key, route), encoding="utf-8")
    (path / "inventory.yml").write_text(inventory([name]), encoding="utf-8")
    return path


def forget(name: str) -> None:
    """Remove the folder of a host that is gone."""
    shutil.rmtree(folder(name), ignore_errors=True)


def ssh(name: str, command: str, limit: float) -> int:
    """Run a command on a host and return its exit status, 255 when the host did not answer in time."""
    words = ["ssh", "-F", str(RUN / "ssh_config"), name, command]
    try:
        return subprocess.run(words, timeout=limit, stdin=subprocess.DEVNULL, check=False).returncode
    except subprocess.TimeoutExpired:
        return 255


def wait(name: str, limit: float) -> None:
    """Wait until a host takes commands and has finished booting; end in one sentence when it does not."""
    end = time.monotonic() + limit
    while ssh(name, "systemctl is-system-running --wait >/dev/null 2>&1; test $? -le 1", end - time.monotonic()) != 0:
        if time.monotonic() > end - 2:
            raise SystemExit(f"{name} did not answer within {limit:.0f} s: its console is in {folder(name)}")
        time.sleep(2)

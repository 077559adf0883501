# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell the tests what the scenario's inventory wants of the host that they visit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from testinfra.host import Host


@pytest.fixture(scope="module")
def wanted(host: Host) -> dict[str, str]:
    """Return the values that must be in force, by path."""
    inventory = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"], "inventory.yml")
    hosts: dict[str, Any] = yaml.safe_load(inventory.read_text(encoding="utf-8"))["gpu_nodes"]["hosts"]
    return dict(hosts[host.backend.get_hostname()].get("lab_live", {}))


@pytest.fixture(scope="module")
def wanted_keys(wanted: dict[str, str]) -> dict[str, str]:
    """Return the kernel values among them, by key; a floor that the host exceeds by itself is not in our file."""
    keys = {
        path[len("/proc/sys/") :].replace("/", "."): value
        for path, value in wanted.items()
        if path.startswith("/proc/sys/")
    }
    return {key: value for key, value in keys.items() if key not in ("kernel.pid_max", "vm.dirty_ratio")}

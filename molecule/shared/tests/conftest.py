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
def variables(host: Host) -> dict[str, Any]:
    """Return the inventory's own variables of the host."""
    inventory = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"], "inventory.yml")
    hosts: dict[str, dict[str, Any]] = yaml.safe_load(inventory.read_text(encoding="utf-8"))["gpu_nodes"]["hosts"]
    return hosts[host.backend.get_hostname()]


@pytest.fixture(scope="module")
def live(variables: dict[str, Any]) -> dict[str, str]:
    """Return the values that must be in force, by path."""
    return dict(variables["lab_live"])


@pytest.fixture(scope="module")
def stored(live: dict[str, str], variables: dict[str, Any]) -> dict[str, str]:
    """Return those of them that our files must hold."""
    by_itself = variables.get("lab_by_itself", [])
    return {path: value for path, value in live.items() if path not in by_itself}

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which hosts a fleet playbook works on, so that a misspelt group never means the whole inventory."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet_hosts
short_description: Decide which hosts a fleet playbook works on
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Returns the hosts that a pattern names, for use as C(hosts) of a play.
  - Fails if any part of the pattern is neither a group nor a host, also a part that only excludes hosts, or if a
    wildcard such as V(a*) matches the group C(all) by its name.
  - Without a pattern it returns the group C(gpu_nodes), or the only host of an inventory with exactly one.
options:
  _terms:
    description: The pattern, as C(hosts) of a play takes it; empty or none for the default.
    type: str
"""

EXAMPLES = r"""
- name: Audit the fleet
  hosts: "{{ query('gpu_fleet.node.fleet_hosts', tune_hosts | default('')) }}"
  tasks: []
"""

RETURN = r"""
_raw:
  description: The names of the hosts.
  type: list
  elements: str
"""

import fnmatch
import re
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.inventory.manager import InventoryManager, split_host_pattern
from ansible.plugins.lookup import LookupBase


class LookupModule(LookupBase):
    """Answer `query('gpu_fleet.node.fleet_hosts', PATTERN)`."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **_kwargs: Any) -> list[str]:
        """Return the hosts, or fail with one sentence."""
        groups: dict[str, list[str]] = (variables or {}).get("groups", {})
        parts = [part for term in terms for part in split_host_pattern(term or "")]
        return _named(self._manager(groups), groups, parts) if parts else _default(groups)

    def _manager(self, groups: dict[str, list[str]]) -> InventoryManager:
        manager = InventoryManager(self._loader, parse=False)
        for group, hosts in groups.items():
            manager.add_group(group)
            for host in hosts:
                manager.add_host(host, group=group)
        return manager


def _means_all(pattern: str) -> bool:
    """Tell whether a pattern matches the group `all` by its name, as a* does: Ansible would take every host."""
    if pattern.startswith("~"):
        return re.match(pattern[1:], "all") is not None
    return fnmatch.fnmatchcase("all", pattern)


def _default(groups: dict[str, list[str]]) -> list[str]:
    hosts = groups.get("gpu_nodes") or (groups.get("all", []) if len(groups.get("all", [])) == 1 else [])
    if not hosts:
        raise AnsibleLookupError(
            "tune_hosts: is not set, and the inventory has neither hosts in a group gpu_nodes nor exactly one host; "
            "nothing is touched, name the hosts with -e tune_hosts=PATTERN"
        )
    return list(hosts)


def _named(manager: InventoryManager, groups: dict[str, list[str]], parts: list[str]) -> list[str]:
    for part in parts:
        name = part.lstrip("!&")
        if name not in ("all", "*") and _means_all(name):
            raise AnsibleLookupError(
                f"tune_hosts: {name!r} also matches the group all, so every host; nothing is touched, write it narrower"
            )
        if name not in groups and not manager.list_hosts(name):
            raise AnsibleLookupError(f"tune_hosts: {name!r} names neither a group nor a host; nothing is touched")
    hosts = [host.name for host in manager.list_hosts(parts)]
    if not hosts:
        raise AnsibleLookupError(f"tune_hosts: {','.join(parts)!r} leaves no host; nothing is touched")
    return hosts

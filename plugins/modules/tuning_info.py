#!/usr/bin/python
# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell how a host differs from its declared settings, and who wins at the next boot."""

DOCUMENTATION = r"""
module: tuning_info
short_description: Tell how a host differs from its declared settings, and who wins at the next boot
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Takes the same sets as M(gpu_fleet.node.tuning) and returns five views of each setting. These are the wanted
    value, the
    live one, the one stored in our file, the one that the next boot gives with the file, profile or unit that
    decides it,
    and the original from before the first change.
  - Changes nothing.
extends_documentation_fragment:
  - gpu_fleet.node.sets
options:
  users:
    description:
      - Users whose limits at a login are worked out, over all files in the order of pam_limits.
    type: list
    elements: str
    default: []
  units:
    description:
      - Services and slices whose limits are worked out. Those of memory and tasks are the smallest of the group and
        those above it.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Changes nothing, so check mode makes no difference.
    support: full
  diff_mode:
    description: Changes nothing, so there is no diff.
    support: none
  platform:
    description: The systems that the module works on.
    support: full
    platforms: posix
notes:
  - Needs root and Python 3.9 or newer on the host, and nothing else.
seealso:
  - module: gpu_fleet.node.tuning
"""

EXAMPLES = r"""
- name: Compare the host with the declared set
  gpu_fleet.node.tuning_info:
    sets:
      - name: memory
        sysctl:
          - key: vm.swappiness
            value: "10"
  register: audit

- name: Require the host to be in sync
  ansible.builtin.assert:
    that: audit.in_sync
"""

RETURN = r"""
effective:
  description: The limits that the named users and units really get.
  returned: success
  type: list
  elements: dict
  contains:
    who:
      description: The user or unit.
      type: str
      returned: always
    item:
      description: The limit, of limits.conf for a user, a property for a unit.
      type: str
      returned: always
    value:
      description: The value, in the unit of limits.conf(5) for a user; bytes, tasks or soft:hard for a unit.
      type: str
      returned: always
    by:
      description: The line, file, or slice above it that decides.
      type: str
      returned: always
in_sync:
  description: Whether nothing differs, nothing that is ours is undeclared, and the next boot is known to keep it so.
  returned: success
  type: bool
drift:
  description: Each difference.
  returned: success
  type: list
  elements: dict
  contains:
    set:
      description: The set.
      type: str
    kind:
      description: V(sysctl), V(sysfs) or V(file).
      type: str
    key:
      description: The key or path.
      type: str
    view:
      description: >-
        The view that differs, one of V(live), V(stored), V(boot), V(running) for a process with an older value,
        V(wanted) for what is ours but not declared, or V(host) for a value that this host cannot take.
      type: str
    wanted:
      description: The declared value; null where nothing is declared.
      type: str
    actual:
      description: What the host has; null for nothing, V(unknown) where a writer is not understood.
      type: str
    by:
      description: >-
        Who is responsible, a file and line, a unit or a profile; null where that is not known. For V(host) the sentence
        with which M(gpu_fleet.node.tuning) would refuse.
      type: str
settings:
  description: All views of each declared setting.
  returned: success
  type: list
  elements: dict
  contains:
    set:
      description: The set.
      type: str
    kind:
      description: The kind.
      type: str
    key:
      description: The key or path.
      type: str
    rule:
      description: V(exact) or V(at_least).
      type: str
    wanted:
      description: The declared value in normal form.
      type: str
    held:
      description: Whether our file holds it. A floor that the host exceeds by itself is not held.
      type: bool
    live:
      description: The value in force; null with a C(live_reason).
      type: str
    live_reason:
      description: Why there is no live value; else null.
      type: str
    stored:
      description: The value in our file; null where it is not there.
      type: str
    boot:
      description: The value that the next boot gives; null where nobody writes it or it is unknown.
      type: str
    boot_winner:
      description: The file and line, unit, profile or boot-line word that decides it; null for the kernel.
      type: str
    boot_reason:
      description: Why the boot value is unknown; else null.
      type: str
    original:
      description: The value before our first change; null with an C(original_reason).
      type: str
    original_reason:
      description: Why there is no original; else null.
      type: str
    reason:
      description: Why the setting is not applicable or not held; else null.
      type: str
conflicts:
  description: Each other owner of a setting, as returned by M(gpu_fleet.node.tuning).
  returned: success
  type: list
  elements: dict
not_applicable:
  description: The settings that cannot be had on this host, each with a reason.
  returned: success
  type: list
  elements: dict
"""

import json
import sys

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Build the spec, open the host, call the engine, leave."""
    from ansible_collections.gpu_fleet.node.plugins.module_utils import _arguments
    from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _run

    names = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={**_arguments.spec(), "users": names, "units": names}, supports_check_mode=True
    )
    _arguments.finish(module, lambda host: _run.inform(host, module.params))


if __name__ == "__main__":
    if sys.version_info < (3, 9):
        message = "tuning_info: needs Python 3.9 or newer on the host; set ansible_python_interpreter"
        sys.stdout.write(json.dumps({"failed": True, "msg": message}))
        raise SystemExit(1)
    main()

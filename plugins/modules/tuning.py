#!/usr/bin/python
# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the settings of a host true, live and stored, or take them back."""

DOCUMENTATION = r"""
module: tuning
short_description: Make the settings of a host true, live and stored, or take them back
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Takes any number of sets of settings and makes them true in the running kernel and for the next boot, in one
    transaction.
  - Before the first change the originals are written durably to C(/var/lib/gpu-fleet/journal.json) on the host.
    If a write or the verification fails, everything that the call had changed returns to its state before it. A run
    that
    was killed is undone by the next one.
  - Everything is read back after it is written. A value that the kernel clamped or ignored is a failure.
  - A file of somebody else that would win at the next boot is named and refused before the first write. Owners that
    rewrite at run time (TuneD, an enabled unit, a udev rule, rc.local) are named in RV(conflicts) and as warnings.
extends_documentation_fragment:
  - gpu_fleet.node.sets
options:
  state:
    description:
      - V(present) makes the sets true. V(absent) gives every setting of the named sets its recorded original back;
        what the
        sets declare is then ignored.
    type: str
    choices: [present, absent]
    default: present
  strict:
    description:
      - Fail, before the first write, where a setting cannot be had on this host or another owner gives it another
        value.
    type: bool
    default: false
  force:
    description:
      - Give the original back even where somebody else has changed the value since. Without it such a value is left
        alone
        with a warning.
    type: bool
    default: false
  reload:
    description:
      - Whether systemd may read its files again (C(systemctl daemon-reload)), which what has no other way needs, such
        as the limits of a service. It happens at most once in a call.
      - A reload can take the GPUs away from containers that run. V(auto) does not reload while a container with GPUs is
        found; the settings are then in RV(pending), and a later call catches up. V(always) reloads all the same, with a
        warning. V(never) leaves it to a later call.
    type: str
    choices: [auto, always, never]
    default: auto
  lock_timeout:
    description:
      - How long to wait for another run on the same host, in seconds.
    type: int
    default: 30
attributes:
  check_mode:
    description: Can run in check mode and return what would change, without writing anything.
    support: full
  diff_mode:
    description: Returns the live, stored, boot and wanted view of all that changes, and each file before and after.
    support: full
  platform:
    description: The systems that the module works on.
    support: full
    platforms: posix
notes:
  - Needs root and Python 3.9 or newer on the host, and nothing else.
  - In an image (O(root)) a floor is stored as an exact value, since the kernel's own value is not known there.
seealso:
  - module: gpu_fleet.node.tuning_info
"""

EXAMPLES = r"""
- name: Ensure the memory settings of two sets in one transaction
  gpu_fleet.node.tuning:
    sets:
      - name: pages
        sysfs:
          - path: /sys/kernel/mm/transparent_hugepage/enabled
            value: madvise
            when_missing: never
      - name: memory
        sysctl:
          - key: vm.swappiness
            value: "10"
          - key: vm.max_map_count
            value: "1048576"
            rule: at_least

- name: Ensure that both sets are taken back
  gpu_fleet.node.tuning:
    sets:
      - name: pages
      - name: memory
    state: absent

- name: Ensure that a mounted golden image has the settings
  gpu_fleet.node.tuning:
    root: /mnt/image
    sets:
      - name: memory
        sysctl:
          - key: vm.swappiness
            value: "10"
"""

RETURN = r"""
changes:
  description: Each write, in order.
  returned: success
  type: list
  elements: dict
  contains:
    set:
      description: The set; null for the journal.
      type: str
    kind:
      description: >-
        V(sysctl) or V(sysfs) for a live value, V(file) for a file of ours, V(journal) where only the recorded
        originals change.
      type: str
    key:
      description: The key or path.
      type: str
    before:
      description: The value before; null for nothing.
      type: str
    after:
      description: The value after; null for nothing.
      type: str
  sample: [{"set": "memory", "kind": "sysctl", "key": "vm.swappiness", "before": "60", "after": "10"}]
settings:
  description: Each declared setting with its outcome.
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
    wanted:
      description: The declared value in normal form.
      type: str
    rule:
      description: V(exact) or V(at_least).
      type: str
    outcome:
      description: V(ok), V(changed), V(not_applicable) or V(conflict) (true now, but another owner takes it back).
      type: str
    reason:
      description: Why a setting is not applicable, or is right without us; else null.
      type: str
not_applicable:
  description: >-
    The settings that cannot be had on this host, each with C(set), C(kind), C(key), C(wanted) and C(reason).
  returned: success
  type: list
  elements: dict
conflicts:
  description: Each other owner of a setting that gives it another value.
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
    wanted:
      description: Our value.
      type: str
    rule:
      description: V(exact) or V(at_least).
      type: str
    theirs:
      description: Their value; null where what the writer does is not understood.
      type: str
    source:
      description: The file and line, unit, profile or boot-line word.
      type: str
    stage:
      description: When it acts, one of V(boot_line), V(boot_file), V(late), V(manager) and V(by_hand).
      type: str
    wins_at_boot:
      description: V(ours), V(theirs), V(another) or V(unknown).
      type: str
pending:
  description: What will only be true after a reboot, each with C(set), C(kind), C(key) and C(reason).
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

    spec = _arguments.spec()
    spec.update(
        state={"type": "str", "choices": ["present", "absent"], "default": "present"},
        strict={"type": "bool", "default": False},
        force={"type": "bool", "default": False},
        reload={"type": "str", "choices": ["auto", "always", "never"], "default": "auto"},
        lock_timeout={"type": "int", "default": 30},
    )
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    _arguments.finish(module, lambda host: _run.tune(host, module.params, module.check_mode))


if __name__ == "__main__":
    if sys.version_info < (3, 9):
        message = "tuning: needs Python 3.9 or newer on the host; set ansible_python_interpreter"
        sys.stdout.write(json.dumps({"failed": True, "msg": message}))
        raise SystemExit(1)
    main()

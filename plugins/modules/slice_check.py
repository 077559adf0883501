#!/usr/bin/python
# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove slices: a small hog below each runs into a limit, and only the hog dies."""

DOCUMENTATION = r"""
module: slice_check
short_description: Prove that memory limits hold in slices
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Starts two services in each named slice, a neighbour that sleeps and a hog with a small memory limit of its own that
    takes four times as much, and shows that the hog was killed and that nothing else was.
  - What the kernel did is read from C(memory.events) of the slice (cgroup v2) and from the kernel log (v1 and v2).
  - Both services are gone afterwards. The limits of the slices themselves are not touched.
options:
  slices:
    description: The slices. Prefixes such as V(user-.slice) have no group of their own and are refused.
    type: list
    elements: str
    required: true
  mib:
    description: The memory that the hog may have, in MiB.
    type: int
    default: 64
attributes:
  check_mode:
    description: In check mode nothing is started and no check is returned.
    support: full
  diff_mode:
    description: Changes nothing, so there is no diff.
    support: none
  platform:
    description: The systems that the module works on.
    support: full
    platforms: posix
notes:
  - Needs root, systemd and Python 3.9 or newer on the host.
seealso:
  - module: gpu_fleet.node.tuning
"""

EXAMPLES = r"""
- name: Prove the slice of the jobs
  gpu_fleet.node.slice_check:
    slices: [gpu-jobs.slice]
"""

RETURN = r"""
verdict:
  description:
    - V(pass) where every check passed, V(fail) where one did not, V(unknown) where one could not be judged.
    - It is V(unknown) in check mode.
  returned: success
  type: str
checks:
  description: What was seen.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description:
        - The slice and C(hog) (how it ended), C(counted) (kills that the slice counts, v2 only), C(kernel_log) (kills
          of the whole host, where the log can be read) or C(neighbour) (its process before and after).
      type: str
      returned: always
    status:
      description: V(pass), V(fail), or V(unknown) where nothing that the kernel says can be read.
      type: str
      returned: always
    observed:
      description: What was seen.
      type: raw
      returned: always
    expected:
      description: What should have been.
      type: raw
      returned: always
    threshold_source:
      description: Where the figure comes from.
      type: str
      returned: always
    action:
      description: What to do; empty where it passed.
      type: str
      returned: always
"""

import json
import sys

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Build the spec, run the checks, leave."""
    from ansible_collections.gpu_fleet.node.plugins.module_utils import _slice_check
    from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
    from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

    slices = {"type": "list", "elements": "str", "required": True}
    module = AnsibleModule(
        argument_spec={"slices": slices, "mib": {"type": "int", "default": 64}}, supports_check_mode=True
    )
    if module.check_mode:
        module.exit_json(changed=False, verdict="unknown", checks=[])
    try:
        checks = [
            row for name in module.params["slices"] for row in _slice_check.check(Host(), name, module.params["mib"])
        ]
    except TuningError as error:
        module.fail_json(msg=str(error))
    found = {row["status"] for row in checks}
    verdict = "fail" if "fail" in found else "unknown" if "unknown" in found or not found else "pass"
    module.exit_json(changed=False, verdict=verdict, checks=checks)


if __name__ == "__main__":
    if sys.version_info < (3, 9):
        message = "slice_check: needs Python 3.9 or newer on the host; set ansible_python_interpreter"
        sys.stdout.write(json.dumps({"failed": True, "msg": message}))
        raise SystemExit(1)
    main()

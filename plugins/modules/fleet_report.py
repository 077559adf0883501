# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write what the smoke test found on a fleet as files on the controller (the action plugin of this name does it)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_report
short_description: Write what the smoke test found on a fleet as files on the controller
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Runs on the controller and touches no host. Writes C(hosts/NAME.json) for each host, and C(fleet.json),
    C(junit.xml),
    C(fleet.html) and C(fleet.prom) for all.
  - Compares each figure with the median of like hosts (same GPUs, same profile), where there are at least five of them,
    and
    names those that are more than 3.5 robust spreads, and more than 3 %, to the worse.
options:
  results:
    description: >-
      A mapping from host to the result of M(gpu_fleet.node.memory_smoke_test); an empty one for a host not reached.
    type: dict
    required: true
  folder:
    description: The folder on the controller; a relative one lies where Ansible was started.
    type: str
    required: true
attributes:
  check_mode:
    description: Writes nothing in check mode.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
  platform:
    description: The systems that the module works on.
    support: full
    platforms: posix
seealso:
  - module: gpu_fleet.node.memory_smoke_test
"""

EXAMPLES = r"""
- name: Ensure the report of the fleet
  gpu_fleet.node.fleet_report:
    folder: /srv/reports/fleet
    results: "{{ {inventory_hostname: smoke} }}"
  run_once: true
"""

RETURN = r"""
lines:
  description: The report in a few lines, the heading first.
  returned: success
  type: list
  elements: str
outliers:
  description: Each figure of a host that is worse than that of its like, with C(off_percent) and C(off_spreads).
  returned: success
  type: list
  elements: dict
verdicts:
  description: The verdict of each host.
  returned: success
  type: dict
folder:
  description: Where the files are.
  returned: success
  type: str
"""

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the polkit rule by which a group may enter the slice of the jobs."""

from __future__ import annotations

DOCUMENTATION = r"""
name: launcher_rule
short_description: Write the polkit rule by which a group may enter the slice of the jobs
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Returns a rule for polkit by which the members of a group may run one command as root through C(pkexec) without a
    password, C(gpu-run --enter=SLICE --pid=NUMBER), and nothing else. The launcher then makes sure that the process is
    the user's own.
  - A rule for the systemd action itself would let the group start services as root.
options:
  _input:
    description: The group; without one there is no rule, and the text is empty.
    type: str
    required: true
  program:
    description: The path of the launcher.
    type: str
    required: true
  slice_name:
    description: The slice.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the rule
  ansible.builtin.debug:
    msg: "{{ 'ml' | gpu_fleet.node.launcher_rule('/usr/local/bin/gpu-run', 'gpu-jobs.slice') }}"
"""

RETURN = r"""
_value:
  description: The text of the rule.
  type: str
"""

import json
import re
from collections.abc import Callable

from ansible.errors import AnsibleFilterError

GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*[$]?")
SLICE = re.compile(r"[A-Za-z0-9:_.][A-Za-z0-9:_.-]*[.]slice")
RULE = """// Written by gpu_fleet.node: members of a group may enter the slice of the jobs with gpu-run.
polkit.addRule(function(action, subject) {
    var command = action.lookup("command_line") || "";
    var start = PROGRAM + " --enter=" + SLICE + " --pid=";
    if (action.id == "org.freedesktop.policykit.exec" && action.lookup("program") == PROGRAM &&
        command.indexOf(start) == 0 && /^[0-9]+$/.test(command.substring(start.length)) &&
        subject.isInGroup(GROUP)) {
        return polkit.Result.YES;
    }
});
"""


def launcher_rule(group: str, program: str, slice_name: str) -> str:
    """Return the text of the rule; nothing without a group, since older Ansible also evaluates what is not chosen."""
    if not group:
        return ""
    if not GROUP.fullmatch(group):
        raise AnsibleFilterError(f"tune_numa_polkit_group: {group!r} is no name of a group")
    if not SLICE.fullmatch(slice_name):
        raise AnsibleFilterError(
            f"tune_numa_slice: {slice_name!r} is no name of a slice, which the rule for {group} needs"
        )
    words = {"PROGRAM": program, "SLICE": slice_name, "GROUP": group}
    return re.sub("PROGRAM|SLICE|GROUP", lambda found: json.dumps(words[found[0]]), RULE)


class FilterModule:
    """Offer the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Return the filters by name."""
        return {"launcher_rule": launcher_rule}

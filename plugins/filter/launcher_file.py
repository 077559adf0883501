# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the defaults file of the launcher gpu-run from the variables of a role."""

from __future__ import annotations

DOCUMENTATION = r"""
name: launcher_file
short_description: Write the defaults file of the launcher gpu-run
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Takes the variables that the launcher gives every job, and returns the text of C(/etc/gpu-fleet/gpu-run.json).
  - A name that is none, a value of several lines, and an allocator configuration that would stop every job are refused.
  - In C(LD_PRELOAD) a name without a folder becomes C(@NAME@), in whose place the option
    O(gpu_fleet.node.tuning#module:sets[].files[].libraries) puts the path that it has on the host.
options:
  _input:
    description: Names and values of environment variables.
    type: dict
    required: true
  slice_name:
    description: The systemd slice that jobs enter by default; empty for none.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Show the file
  ansible.builtin.debug:
    msg: "{{ {'NCCL_DEBUG': 'WARN'} | gpu_fleet.node.launcher_file('gpu-jobs.slice') }}"
"""

RETURN = r"""
_value:
  description: The text of the file.
  type: str
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.utils.display import Display
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _configuration
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _defaults

PRELOAD = "LD_PRELOAD"
PLAIN = re.compile(r"[!#%-.0-?A-\[\]-~]+")  # what JSON writes as it is, without a slash, a dollar and the mark itself
ALLOCATOR = (_configuration.OLD_NAME, _configuration.HIP_NAME, _configuration.NEW_NAME)


def launcher_file(environment: Mapping[str, Any], slice_name: str = "") -> str:
    """Return the text of the defaults file; numbers become the texts that they are written as."""
    texts = {str(name): _text(str(name), value) for name, value in environment.items()}
    texts.update((name, _configuration.normal(texts[name])) for name in ALLOCATOR if name in texts)
    if PRELOAD in texts:
        texts[PRELOAD] = " ".join(_marked(word) for word in re.split("[ :]+", texts[PRELOAD]) if word)
    given = _defaults.Defaults(texts, slice_name)
    problems = [*_defaults.problems(given), *_allocator(texts)]
    if problems:
        raise AnsibleFilterError(f"tune_numa: {problems[0]}")
    for name in ALLOCATOR:
        for concern in _configuration.concerns(texts.get(name, "")):
            Display().warning(f"tune_numa: {name}: {concern}")
    # The empty line keeps older versions of Ansible from taking the text for a mapping.
    return "\n" + _defaults.render(given)


def _text(name: str, value: Any) -> str:
    if isinstance(value, (bool, dict, list)) or value is None:
        raise AnsibleFilterError(f"tune_numa_environment: {name} has {value!r}, expected one line of text; quote it")
    return str(value)


def _marked(word: str) -> str:
    return f"@{word}@" if PLAIN.fullmatch(word) else word


def _allocator(texts: Mapping[str, str]) -> list[str]:
    named = {name: text for name, text in texts.items() if name in ALLOCATOR}
    return [f"{name}: {problem}" for name, text in named.items() for problem in _configuration.problems(text)]


class FilterModule:
    """Offer the filter to Ansible."""

    def filters(self) -> dict[str, Callable[..., str]]:
        """Return the filters by name."""
        return {"launcher_file": launcher_file}

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that the modules of the engine share, and the way both call it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host, no_label
from ansible_collections.gpu_fleet.node.plugins.module_utils._kinds._properties import PROPERTIES
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

Result = tuple[dict[str, Any], list[str]]
RULES = ["exact", "at_least"]
ITEMS = ["as", "core", "cpu", "data", "fsize", "locks", "maxlogins", "maxsyslogins", "memlock", "msgqueue", "nice"]
ITEMS += ["nofile", "nproc", "priority", "rss", "rtprio", "sigpending", "stack"]


def spec() -> dict[str, Any]:
    """Return the argument spec of `sets` and `root`."""
    sysctl = {
        "key": {"type": "str", "required": True, "no_log": False},
        "value": {"type": "str", "required": True},
        "rule": {"type": "str", "choices": RULES, "default": "exact"},
        "one_way": {"type": "bool", "default": False},
    }
    sysfs = {
        "path": {"type": "str", "required": True},
        "value": {"type": "str", "required": True},
        "rule": {"type": "str", "choices": RULES, "default": "exact"},
        "when_missing": {"type": "str"},
    }
    limits = {
        "domain": {"type": "str", "required": True},
        "type": {"type": "str", "choices": ["soft", "hard", "-"], "default": "-"},
        "item": {"type": "str", "required": True, "choices": ITEMS},
        "value": {"type": "str", "required": True},
    }
    units = {
        "unit": {"type": "str", "required": True},
        "property": {"type": "str", "required": True, "choices": sorted(PROPERTIES)},
        "value": {"type": "str", "required": True},
        "restart": {"type": "bool", "default": False},
        "caveat": {"type": "str"},
    }
    files = {
        "path": {"type": "str", "required": True},
        "content": {"type": "str"},
        "program": {"type": "str", "choices": ["gpu_run"]},
        "mode": {"type": "str", "default": "0644"},
        "libraries": {"type": "list", "elements": "str", "default": []},
    }
    kinds = {
        "name": {"type": "str", "required": True},
        "sysctl": {"type": "list", "elements": "dict", "default": [], "options": sysctl},
        "sysfs": {"type": "list", "elements": "dict", "default": [], "options": sysfs},
        "limits": {"type": "list", "elements": "dict", "default": [], "options": limits},
        "units": {"type": "list", "elements": "dict", "default": [], "options": units},
        "files": {"type": "list", "elements": "dict", "default": [], "options": files},
    }
    return {
        "sets": {"type": "list", "elements": "dict", "required": True, "options": kinds},
        "root": {"type": "path", "default": "/"},
    }


def finish(module: AnsibleModule, call: Callable[[Host], Result]) -> None:
    """Open the host, make the call, and leave with its result or with one sentence."""

    def label(path: str, target: str) -> None:
        module.set_context_if_different(path, module.selinux_default_context(target), False)

    try:
        _check_root(module.params["root"])
        host = Host(module.params["root"], label=label if module.selinux_enabled() else no_label)
        result, warnings = call(host)
    except TuningError as error:
        module.fail_json(msg=str(error))
    for warning in warnings:
        module.warn(warning)
    module.exit_json(**result)


def _check_root(root: str) -> None:
    if not os.path.isdir(os.path.join(root, "etc")):
        raise TuningError(f"root {root}: has no folder etc, so it is not the tree of a system; is the image mounted?")

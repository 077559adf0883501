# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the report of the fleet on the controller, without a connection to any host."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import _compare
from ansible_collections.gpu_fleet.node.plugins.plugin_utils import _reports

RESULT_KEYS = (
    "verdict",
    "msg",
    "checks",
    "measurements",
    "previous",
    "gpus",
    "torch",
    "python",
    "profile",
    "host",
    "duration",
    "ended",
    "kept",
    "failed",
)


class ActionModule(ActionBase):
    """Answer the task `gpu_fleet.node.fleet_report`."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compare, write, and return the lines."""
        super().run(tmp, task_vars)
        spec = {"results": {"type": "dict", "required": True}, "folder": {"type": "str", "required": True}}
        _validation, options = self.validate_argument_spec(argument_spec=spec)
        results = {
            host: {key: one[key] for key in RESULT_KEYS if key in one} for host, one in options["results"].items()
        }
        outliers = _compare.fleet(results)
        folder = os.path.abspath(os.path.expanduser(options["folder"]))
        verdicts = {host: _reports.verdict(one) for host, one in results.items()}
        changed = False
        if not self._task.check_mode:
            changed = write(folder, files(results, outliers, verdicts))
        return {
            "changed": changed,
            "lines": _reports.lines(results, outliers),
            "outliers": outliers,
            "verdicts": verdicts,
            "folder": folder,
        }


def files(results: Mapping[str, Any], outliers: list[dict[str, Any]], verdicts: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each file by name."""
    summary = {
        "verdicts": verdicts,
        "messages": {host: _reports.message(one) for host, one in results.items()},
        "outliers": outliers,
    }
    hosts = {f"hosts/{re.sub(r'[^A-Za-z0-9._-]', '_', host)}.json": encode(one) for host, one in results.items()}
    return {
        **hosts,
        "fleet.json": encode(summary),
        "junit.xml": _reports.junit(results, outliers),
        "fleet.html": _reports.page(results, outliers),
        "fleet.prom": _reports.prometheus(results, outliers),
    }


def encode(value: Any) -> str:
    """Return JSON as people read it."""
    return json.dumps(value, indent=1, sort_keys=True, default=str) + "\n"


def write(folder: str, texts: Mapping[str, str]) -> bool:
    """Write each file whole or not at all; tell whether any is new."""
    changed = False
    try:
        os.makedirs(os.path.join(folder, "hosts"), exist_ok=True)
        for name, text in texts.items():
            path = os.path.join(folder, name)
            with open(path + ".new", "w", encoding="utf-8") as stream:
                stream.write(text)
            changed = changed or not same(path, text)
            os.replace(path + ".new", path)
    except OSError as error:
        raise AnsibleActionFail(f"folder: {folder} cannot be written on the controller ({error.strerror})") from error
    return changed


def same(path: str, text: str) -> bool:
    """Tell whether a file says this already."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read() == text
    except OSError:
        return False

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module of this name; a full test runs in the background, and each check that begins is told while it runs."""

from __future__ import annotations

import secrets
import shlex
import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

PAUSE = 5.0  # between two looks
LIMIT = 7200  # for the background job; the module has its own limits, and they are shorter
GRACE = 3  # how often a look may fail before the test is given up


class ActionModule(ActionBase):
    """Answer the task `gpu_fleet.node.memory_smoke_test`."""

    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run a quick test as any module, and a full one with a line for each check."""
        super().run(tmp, task_vars)
        options = dict(self._task.args)
        if options.get("profile") != "full" or self._task.check_mode or self._task.async_val:
            return self._module(options, task_vars, wrap_async=bool(self._task.async_val))
        return self._followed(options, task_vars)

    def _module(self, options: dict[str, Any], task_vars: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
        name = more.pop("name", "gpu_fleet.node.memory_smoke_test")
        result: dict[str, Any] = self._execute_module(
            module_name=name, module_args=options, task_vars=task_vars, **more
        )
        return result

    def _followed(self, options: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Start the test in the background and look at its progress until it ends."""
        path = f"/tmp/gpu-fleet-progress-{secrets.token_hex(8)}"
        self._task.async_val = LIMIT
        try:
            job = self._module({**options, "progress": path}, task_vars, wrap_async=True)
        finally:
            self._task.async_val = 0
        if job.get("failed") or "ansible_job_id" not in job:
            return job
        folder = self.get_shell_option("async_dir", default="~/.ansible_async")
        query = {"jid": job["ansible_job_id"], "_async_dir": folder}
        told, failures = 0, 0
        while True:
            time.sleep(PAUSE)
            told = self._tell(path, told, task_vars)
            answer = self._module({**query, "mode": "status"}, task_vars, name="ansible.legacy.async_status")
            failures = failures + 1 if "finished" not in answer else 0
            if answer.get("finished") or failures > GRACE:
                break
        self._tell(path, told, task_vars)
        self._low_level_execute_command(f"rm -f {shlex.quote(path)}")
        self._module({**query, "mode": "cleanup"}, task_vars, name="ansible.legacy.async_status")
        return {key: value for key, value in answer.items() if key not in ("ansible_job_id", "started", "finished")}

    def _tell(self, path: str, told: int, task_vars: dict[str, Any] | None) -> int:
        """Show the lines that are new."""
        answer = self._low_level_execute_command(f"cat {shlex.quote(path)} 2>/dev/null || true")
        lines = str(answer.get("stdout", "")).splitlines()
        host = (task_vars or {}).get("inventory_hostname", "host")
        for line in lines[told:]:
            Display().display(f"{host}: {line}")
        return len(lines)

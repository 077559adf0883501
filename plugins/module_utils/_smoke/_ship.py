# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the probe's sources into a folder, for an interpreter that knows nothing of Ansible."""

from __future__ import annotations

import os
from types import ModuleType

from ansible_collections.gpu_fleet.node.plugins.module_utils import _sources, _torch_probe
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe import (
    _allocator,
    _bandwidth,
    _cgroup,
    _children,
    _collectives,
    _dataloader,
    _environment,
    _exhaustion,
    _fill,
    _fragmentation,
    _huge_pages,
    _limits,
    _main,
    _pinned,
    _report,
    _stack,
    _training,
)

PACKAGE = "gpu_fleet_probe"
# Named one by one, since Ansible sends what is imported.
PARTS: tuple[ModuleType, ...] = (
    _torch_probe,
    _allocator,
    _bandwidth,
    _cgroup,
    _children,
    _collectives,
    _dataloader,
    _environment,
    _exhaustion,
    _fill,
    _fragmentation,
    _huge_pages,
    _limits,
    _main,
    _pinned,
    _report,
    _stack,
    _training,
)
START = f"from {PACKAGE}._main import main\n\nif __name__ == '__main__':\n    main()\n"


def write(folder: str) -> str:
    """Write all files and return the one to start."""
    os.mkdir(os.path.join(folder, PACKAGE), 0o755)
    for part in PARTS:
        name = "__init__" if part is _torch_probe else part.__name__.rsplit(".", 1)[1]
        _put(os.path.join(folder, PACKAGE, f"{name}.py"), _sources.text(part))
    start = os.path.join(folder, "smoke.py")
    _put(start, START)
    return start


def _put(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)

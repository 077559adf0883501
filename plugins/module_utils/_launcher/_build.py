# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build gpu-run: one executable file from the sources of this package, the same bytes each time."""

from __future__ import annotations

import io
import sys
import zipfile
from types import ModuleType

from ansible_collections.gpu_fleet.node.plugins.module_utils import _launcher, _sources, _topology
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import (
    _devices,
    _main,
    _model,
    _options,
    _plan,
    _scene,
    _slice,
)

# Named one by one, since Ansible sends what is imported.
PARTS: tuple[ModuleType, ...] = (_topology, _launcher, _devices, _main, _model, _options, _plan, _scene, _slice)
START = "from {} import main\n\nraise SystemExit(main())\n"
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever it is built


def build() -> bytes:
    """Return the file: a line for the kernel that names this interpreter, then an archive that Python runs."""
    files = {"__main__.py": START.format(_main.__name__)}
    for part in PARTS:
        place = part.__name__.replace(".", "/")
        files[f"{place}/__init__.py" if part is _launcher else f"{place}.py"] = _sources.text(part)
        folders = place.split("/")[:-1]
        for depth in range(1, len(folders) + 1):
            files.setdefault("/".join(folders[:depth]) + "/__init__.py", "")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, LONG_AGO), files[name], zipfile.ZIP_DEFLATED)
    # -I: neither the folder of the job nor its PYTHONPATH may put modules in the place of Python's own.
    return f"#!{sys.executable} -I\n".encode() + stream.getvalue()

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build gpu-run: one file that holds its own sources, and is the same bytes each time."""

from __future__ import annotations

import io
import zipfile
from types import ModuleType

from ansible_collections.gpu_fleet.node.plugins.module_utils import (
    _commands,
    _disk,
    _host,
    _model,
    _sources,
    _topology,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _figures, _policy, _smi_tables
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import (
    _defaults,
    _devices,
    _main,
    _options,
    _plan,
    _programs,
    _scene,
    _slice,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _model as _values
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _child, _process, _read

# Isolated and without site-packages: whatever environment the jobs have, it is not for the launcher.
SHEBANG = b"#!/usr/bin/python3 -IS\n"
# Named one by one, since Ansible sends what is imported.
SHARED: tuple[ModuleType, ...] = (_commands, _disk, _host, _model, _topology, _child, _process, _read)
GPU: tuple[ModuleType, ...] = (_figures, _policy, _smi_tables)
OWN: tuple[ModuleType, ...] = (_defaults, _devices, _main, _options, _plan, _programs, _scene, _slice, _values)
EPOCH = (1980, 1, 1, 0, 0, 0)
# It also has to be understood by an older Python, which then looks for a newer one.
START = """\
import os
import sys

if sys.version_info < (3, 9):
    for minor in range(20, 8, -1):
        newer = "/usr/bin/python3.%d" % minor
        if os.path.exists(newer):
            os.execv(newer, [newer, "-IS"] + sys.argv)
    sys.exit("gpu-run: Python 3.9 or newer is needed, and %s is %d.%d" % ((sys.executable,) + sys.version_info[:2]))

from {module} import main

sys.exit(main(sys.argv[1:]))
"""


def build() -> bytes:
    """Return the executable."""
    files = {"__main__.py": START.format(module=_main.__name__)}
    for part in (*SHARED, *GPU, *OWN):
        files[f"{part.__name__.replace('.', '/')}.py"] = _sources.text(part)
    folders = {name.rpartition("/")[0] for name in files if "/" in name}
    every = {
        "/".join(parts[:count]) for parts in (one.split("/") for one in folders) for count in range(1, len(parts) + 1)
    }
    files.update({f"{folder}/__init__.py": "" for folder in every})
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, files[name].encode())
    return SHEBANG + stream.getvalue()

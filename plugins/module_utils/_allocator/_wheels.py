# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an installed torch says of itself in its files, without importing it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._figures import Missing
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _read

LINE = re.compile(r"^(__version__|cuda|hip|debug)\b[^=\n]*=\s*(.+)$", re.MULTILINE)
REQUIRED = re.compile(r"^Requires-Dist:\s*(nvidia-(?:nccl|cudnn)-cu\d+)\s*\(?==([\w.]+)", re.MULTILINE | re.IGNORECASE)
TENSOR_LIBRARY = "libc10.so"
MOST = 64 << 20


def version_file(content: str) -> dict[str, str | None]:
    """Read torch/version.py: its own version and those of CUDA and HIP, None where it was built without."""
    found: dict[str, str | None] = {}
    for name, words in LINE.findall(content):
        try:
            value = ast.literal_eval(words.split(" #")[0].strip())
        except (ValueError, SyntaxError):
            continue
        found[name] = value if isinstance(value, str) else None
    return found


def required(host: Host, folders: Sequence[str]) -> dict[str, str]:
    """Return the versions of NVIDIA's libraries that torch's wheel was built for."""
    for folder in folders:
        for name in _read.names(host, folder):
            if re.fullmatch(r"torch-[^-]+\.dist-info", name):
                content = _read.text(host, f"{folder}/{name}/METADATA") or ""
                return {part.split("-")[1]: version for part, version in REQUIRED.findall(content)}
    return {}


def library(host: Host, folders: Sequence[str], prefix: str, name: str) -> tuple[str, str] | Missing:
    """Return the version of NCCL or cuDNN that torch loads, and the file that says so."""
    wheel = re.compile(rf"nvidia[_-]{name}[_-]cu\d+-([\w.]+)\.dist-info")
    conda = re.compile(rf"{name}-([\d.]+)-[^-]*\.json")
    places = [(folder, wheel) for folder in folders] + [(f"{prefix}/conda-meta", conda)]
    for folder, pattern in places:
        found = [base for base in _read.names(host, folder) if pattern.fullmatch(base)]
        if len(found) > 1:
            return Missing(f"{folder}: has {' and '.join(found)}, and only torch itself knows which it loads")
        if found:
            match = pattern.fullmatch(found[0])
            return (match[1] if match else ""), f"{folder}/{found[0]}"
    return Missing(f"{name}: no package of it lies beside torch, so it is built in or the system's; import_torch tells")


def tensor_malloc(host: Host, torch: str) -> tuple[str, str] | Missing:
    """Return who gives out the memory of CPU tensors: torch can carry mimalloc, whatever the process runs on."""
    path = f"{torch}/lib/{TENSOR_LIBRARY}"
    try:
        with open(os.path.realpath(host.at(path)), "rb") as stream:
            content = stream.read(MOST)
    except OSError as error:
        return Missing(f"{path}: cannot be read ({error.strerror})")
    return ("mimalloc" if b"mi_heap_" in content or b"mimalloc" in content else "malloc"), path

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a process here may set a memory policy: containers often refuse the call (seccomp)."""

from __future__ import annotations

import errno
import importlib
import os

SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261}  # the number of the call, which glibc does not wrap
DEFAULT_POLICY = 0


def allowed() -> tuple[bool | None, str | None]:
    """Set the policy that a process starts with; return whether that may be, and why not."""
    number = SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return None, f"the number of the call is not known on {os.uname().machine}"
    try:
        ctypes = importlib.import_module("ctypes")  # some builds of Python lack it
    except ImportError:
        return None, "this Python has no ctypes to try it with"
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ctypes.c_long(number), ctypes.c_long(DEFAULT_POLICY), None, ctypes.c_long(0)) == 0:
        return True, None
    code = ctypes.get_errno()
    return False, f"set_mempolicy: {os.strerror(code).lower()} ({errno.errorcode.get(code, code)})"

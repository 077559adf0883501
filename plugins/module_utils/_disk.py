# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Durable, atomic changes of files and folders, for the host object alone."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable

from ansible_collections.gpu_fleet.node.plugins.module_utils._model import FileState

ABSENT = (errno.ENOENT, errno.ENOTDIR)
NEW = ".gpu-fleet-new"  # beside its target, so that the rename stays in one file system; no program reads this ending


def put(place: str, state: FileState, label: Callable[[str], None]) -> None:
    """Put a file or link in place of what is there; when it fails, nothing is left beside it."""
    fresh = place + NEW
    try:
        make_folders(os.path.dirname(place))
        discard(fresh)
        if state.link is not None:
            os.symlink(state.link, fresh)
            os.lchown(fresh, state.uid, state.gid)
            for name, value in state.xattrs:
                os.setxattr(fresh, name, value, follow_symlinks=False)
        else:
            _fill(fresh, state, label)
        os.replace(fresh, place)
        sync_folder(os.path.dirname(place))
    except OSError:
        discard(fresh)
        raise


def make_folders(place: str) -> None:
    """Make a folder and those above it, readable by all whatever the umask of the run."""
    if not os.path.isdir(place):
        make_folders(os.path.dirname(place))
        os.mkdir(place)
        os.chmod(place, 0o755)


def _fill(fresh: str, state: FileState, label: Callable[[str], None]) -> None:
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(state.content)
        stream.flush()
        if (state.uid, state.gid) != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, state.uid, state.gid)
        label(fresh)
        for name, value in state.xattrs:
            os.setxattr(fresh, name, value)
        os.fchmod(descriptor, state.mode)
        os.fsync(descriptor)


def drop(place: str) -> None:
    """Remove a file or link, and what a cut-short run may have left beside it."""
    discard(place + NEW)
    discard(place)
    if os.path.isdir(os.path.dirname(place)):
        sync_folder(os.path.dirname(place))


def discard(place: str) -> None:
    """Remove one name; one that is gone already is fine."""
    try:
        os.unlink(place)
    except OSError as error:
        if error.errno not in ABSENT:
            raise


def sync_folder(place: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def xattrs(place: str) -> tuple[tuple[str, bytes], ...]:
    """Return the extended attributes of a file or link; none where the file system has none."""
    try:
        names = os.listxattr(place, follow_symlinks=False)
        return tuple((name, os.getxattr(place, name, follow_symlinks=False)) for name in sorted(names))
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODATA):
            return ()
        raise


def claim(place: str, seconds: float) -> int:
    """Return a descriptor of the locked folder, made if missing; TimeoutError if another run holds it that long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            os.makedirs(place, 0o700, exist_ok=True)
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another run removed it between the two calls
        if _flock(descriptor) and _same(descriptor, place):
            return descriptor
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), place)
        time.sleep(0.05)


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same(descriptor: int, place: str) -> bool:
    """Tell whether the folder we hold is still the one at `place`: the last run may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(place))
    except FileNotFoundError:
        return False

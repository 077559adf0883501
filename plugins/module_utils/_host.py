# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only door to the machine: everything that reads or changes a host goes through `Host`."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ansible_collections.gpu_fleet.node.plugins.module_utils._model import FileState, TuningError

# Errors at the opening that mean "cannot be had here"; anything else is a failure of the host.
OBSTACLES = {
    errno.EROFS: "read-only file system",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.ENOENT: "missing in this kernel",
    errno.ENOTDIR: "missing in this kernel",
}
ABSENT = (errno.ENOENT, errno.ENOTDIR)
NEW = ".gpu-fleet-new"  # beside its target, so that the rename stays in one file system; no program reads this ending


def write_kernel(path: str, text: str) -> None:
    """Write one attribute in place, in a single call: the kernel takes or refuses the value as a whole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode() + b"\n")
    finally:
        os.close(descriptor)


class Host:
    """A machine seen from `/`, or another tree (an image) whose kernel is not running: `live` is then False."""

    def __init__(
        self,
        root: str = "/",
        live: bool | None = None,
        kernel: Callable[[str, str], None] = write_kernel,
        label: Callable[[str, str], None] | None = None,
    ) -> None:
        """Open the tree at `root`; `label(file, path)` gives a new file the security label that `path` should have."""
        self.root = os.path.realpath(root)
        self.live = self.root == "/" if live is None else live
        self._kernel = kernel
        self._label = label

    # -- reading ---------------------------------------------------------------------------------------------------

    def at(self, path: str) -> str:
        """Return where `path` really lies, following links as the host itself would, never out of its tree."""
        if self.root == "/":
            return path
        done, todo, hops = [], path.split("/"), 0
        while todo:
            part = todo.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                done = done[:-1]
                continue
            here = os.path.join(self.root, *done, part)
            if not todo or not os.path.islink(here):  # the last part is the file itself: it is not followed
                done.append(part)
                continue
            hops += 1
            if hops > 40:
                raise TuningError(f"{path}: too many symbolic links below {self.root}")
            target = os.readlink(here)
            done = [] if target.startswith("/") else done
            todo = target.split("/") + todo
        return os.path.join(self.root, *done)

    def target(self, path: str) -> str | None:
        """Return what the symbolic link at `path` says, or None where there is no link."""
        try:
            return os.readlink(self.at(path))
        except OSError:
            return None

    def read(self, path: str, hops: int = 8) -> str | None:
        """Return the text of a file, links followed inside the tree, or None where there is none."""
        link = self.target(path)
        if link is not None and self.root != "/":
            if not hops:
                return None
            return self.read(os.path.normpath(os.path.join(os.path.dirname(path), link)), hops - 1)
        try:
            with open(self.at(path), "rb") as stream:
                return stream.read().decode("utf-8", "surrogateescape")
        except OSError as error:
            if error.errno in ABSENT or error.errno == errno.EISDIR:
                return None
            raise TuningError(f"{path}: cannot be read ({error.strerror})") from error

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder; none where there is no folder."""
        link = self.target(path)
        if link is not None and self.root != "/":
            return self.names(os.path.normpath(os.path.join(os.path.dirname(path), link)))
        try:
            return sorted(os.listdir(self.at(path)))
        except OSError as error:
            if error.errno in ABSENT:
                return []
            raise TuningError(f"{path}: cannot be listed ({error.strerror})") from error

    def mode(self, path: str) -> int | None:
        """Return type and permission bits of what stands at `path` (links not followed), or None."""
        try:
            return os.lstat(self.at(path)).st_mode
        except OSError:
            return None

    def state(self, path: str) -> FileState | None:
        """Return all that a rollback needs to give the file at `path` back, or None where there is none."""
        place = self.at(path)
        try:
            status = os.lstat(place)
            if stat.S_ISLNK(status.st_mode):
                return FileState(b"", 0o777, status.st_uid, status.st_gid, os.readlink(place), _xattrs(place))
            if not stat.S_ISREG(status.st_mode):
                raise TuningError(f"{path}: is neither a file nor a link, so it is left alone; move it away")
            with open(place, "rb") as stream:
                content = stream.read()
            return FileState(content, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, None, _xattrs(place))
        except OSError as error:
            if error.errno in ABSENT:
                return None
            raise TuningError(f"{path}: cannot be read ({error.strerror})") from error

    def fresh(self, content: bytes) -> FileState:
        """Return the state of a new file of ours: root's and readable by all (a test tree's: the tester's)."""
        return FileState(content, 0o644, os.geteuid(), 0 if os.geteuid() == 0 else os.getegid())

    def obstacle(self, path: str) -> str | None:
        """Return why the kernel value at `path` cannot be written here, found by opening it for writing, or None."""
        try:
            os.close(os.open(self.at(path), os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in OBSTACLES:
                return OBSTACLES[error.errno]
            raise TuningError(f"{path}: cannot be opened for writing ({error.strerror})") from error
        return None

    # -- changing --------------------------------------------------------------------------------------------------

    def poke(self, path: str, text: str) -> None:
        """Write a kernel value in place."""
        try:
            self._kernel(self.at(path), text)
        except OSError as error:
            raise TuningError(f"{path}: the kernel refused {text!r} ({error.strerror})") from error

    def replace(self, path: str, state: FileState) -> None:
        """Put a file (or link) in place of what is there, atomically and durably."""
        place = self.at(path)
        fresh = place + NEW
        try:
            os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
            _discard(fresh)
            if state.link is not None:
                os.symlink(state.link, fresh)
                os.lchown(fresh, state.uid, state.gid)
            else:
                self._fill(fresh, path, state)
            os.replace(fresh, place)
            _sync_folder(os.path.dirname(place))
        except OSError as error:
            try:
                _discard(fresh)
            finally:
                raise TuningError(f"{path}: cannot be written ({error.strerror})") from error

    def _fill(self, fresh: str, path: str, state: FileState) -> None:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(state.content)
            stream.flush()
            if (state.uid, state.gid) != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, state.uid, state.gid)
            if self._label is not None:
                self._label(fresh, path)
            for name, value in state.xattrs:
                os.setxattr(fresh, name, value)
            os.fchmod(descriptor, state.mode)
            os.fsync(descriptor)

    def remove(self, path: str) -> None:
        """Remove a file or link durably; one that is gone already is fine."""
        place = self.at(path)
        try:
            _discard(place + NEW)
            _discard(place)
            if os.path.isdir(os.path.dirname(place)):
                _sync_folder(os.path.dirname(place))
        except OSError as error:
            raise TuningError(f"{path}: cannot be removed ({error.strerror})") from error

    def sweep(self, path: str) -> None:
        """Remove what a run that was killed while it wrote `path` may have left beside it."""
        try:
            _discard(self.at(path) + NEW)
        except OSError as error:
            raise TuningError(f"{path}{NEW}: cannot be removed ({error.strerror})") from error

    def prune(self, folder: str) -> None:
        """Remove a folder that we made, if nobody else keeps anything in it."""
        try:
            os.rmdir(self.at(folder))
        except OSError as error:
            if error.errno not in (*ABSENT, errno.ENOTEMPTY, errno.EEXIST):
                raise TuningError(f"{folder}: cannot be removed ({error.strerror})") from error

    def missing_folders(self, path: str) -> tuple[str, ...]:
        """Return the folders above `path` that do not exist yet, the deepest first."""
        missing = []
        folder = os.path.dirname(path)
        while folder not in ("", "/") and not os.path.isdir(self.at(folder)):
            missing.append(folder)
            folder = os.path.dirname(folder)
        return tuple(missing)

    @contextmanager
    def lock(self, folder: str, seconds: float) -> Iterator[None]:
        """Hold `folder` (made if missing, removed if left empty) against a second run on this host."""
        place = self.at(folder)
        deadline = time.monotonic() + seconds
        descriptor = self._claim(place, folder, deadline)
        try:
            yield
        finally:
            with suppress(TuningError):  # an empty folder that stays behind is no reason to fail what was done
                self.prune(folder)
            os.close(descriptor)

    def _claim(self, place: str, folder: str, deadline: float) -> int:
        while True:
            try:
                os.makedirs(place, 0o700, exist_ok=True)
                descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # another run removed it between the two calls
            except OSError as error:
                raise TuningError(f"{folder}: cannot be opened as a folder ({error.strerror})") from error
            if _flock(descriptor) and _same(descriptor, place):
                return descriptor
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise TuningError(f"{folder}: another run holds this host; wait for it to end and run again")
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


def _discard(place: str) -> None:
    try:
        os.unlink(place)
    except OSError as error:
        if error.errno not in ABSENT:
            raise


def _sync_folder(place: str) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _xattrs(place: str) -> tuple[tuple[str, bytes], ...]:
    try:
        names = os.listxattr(place, follow_symlinks=False)
        return tuple((name, os.getxattr(place, name, follow_symlinks=False)) for name in sorted(names))
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENODATA):
            return ()
        raise

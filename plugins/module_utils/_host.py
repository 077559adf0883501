# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only door to the machine: everything that reads or changes a host goes through `Host`."""

from __future__ import annotations

import errno
import os
import resource
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ansible_collections.gpu_fleet.node.plugins.module_utils import _commands, _disk
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import FileState, TuningError

# Errors at the opening that mean "cannot be had here"; anything else is a failure of the host.
OBSTACLES = {
    errno.EROFS: "read-only file system",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.ENOENT: "missing in this kernel",
    errno.ENOTDIR: "missing in this kernel",
}


def write_kernel(path: str, text: str) -> None:
    """Write one attribute in place, in a single call: the kernel takes or refuses the value as a whole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode() + b"\n")
    finally:
        os.close(descriptor)


def no_label(_fresh: str, _path: str) -> None:
    """Leave a new file without a security label, on a host that has none."""


def beside(path: str, link: str) -> str:
    """Return where a link at a path leads; `..` stays, since the folder before it may be a link itself."""
    return link if link.startswith("/") else f"{os.path.dirname(path)}/{link}"


class Host:
    """A machine seen from `/`, or another tree (an image) whose kernel is not running: `live` is then False."""

    def __init__(
        self,
        root: str = "/",
        live: bool | None = None,
        kernel: Callable[[str, str], None] = write_kernel,
        label: Callable[[str, str], None] = no_label,
        runner: _commands.Runner = _commands.start,
    ) -> None:
        """Open the tree at `root`; `label(file, path)` gives a new file the security label that `path` should have."""
        self.root = os.path.realpath(root)
        self.live = self.root == "/" if live is None else live
        self._kernel = kernel
        self._label = label
        self.commands = _commands.Commands(runner if self.live else None)
        self.page = os.sysconf("SC_PAGE_SIZE")  # bytes, of the kernel that runs here

    # -- reading ---------------------------------------------------------------------------------------------------

    def at(self, path: str) -> str:
        """Return where `path` really lies, following links as the host itself would, never out of its tree."""
        if self.root == "/":
            return path
        done: list[str] = []
        todo, hops = path.split("/"), 0
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
            return self.read(beside(path, link), hops - 1)
        try:
            with open(self.at(path), "rb") as stream:
                return stream.read().decode("utf-8", "surrogateescape")
        except OSError as error:
            if error.errno in _disk.ABSENT or error.errno == errno.EISDIR:
                return None
            raise TuningError(f"{path}: cannot be read ({error.strerror})") from error

    def attribute(self, path: str) -> str | None:
        """Return the text of a kernel value, or None where there is none that may be read here."""
        try:
            return self.read(path)
        except TuningError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in OBSTACLES:
                return None
            raise

    def glance(self, path: str) -> str | None:
        """Return the text of a file that may vanish or be forbidden at any time, as those of a process; then None."""
        try:
            return self.read(path)
        except TuningError:
            return None

    def names(self, path: str, hops: int = 8) -> list[str]:
        """Return the sorted names in a folder; none where there is no folder."""
        link = self.target(path)
        if link is not None and self.root != "/":
            return self.names(beside(path, link), hops - 1) if hops else []
        try:
            return sorted(os.listdir(self.at(path)))
        except OSError as error:
            if error.errno in _disk.ABSENT:
                return []
            raise TuningError(f"{path}: cannot be listed ({error.strerror})") from error

    def mode(self, path: str) -> int | None:
        """Return type and permission bits of what stands at `path` (links not followed), or None."""
        try:
            return os.lstat(self.at(path)).st_mode
        except OSError:
            return None

    def younger(self, pid: str, path: str) -> bool:
        """Tell whether a process was started after the file was written; not where either is unknown."""
        words = (self.glance(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        try:
            written = os.lstat(self.at(path)).st_mtime
        except OSError:
            return False
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return len(words) > 19 and booted + int(words[19]) / os.sysconf("SC_CLK_TCK") > written

    def state(self, path: str) -> FileState | None:
        """Return all that a rollback needs to give the file at `path` back, or None where there is none."""
        place = self.at(path)
        try:
            status = os.lstat(place)
            if stat.S_ISLNK(status.st_mode):
                return FileState(b"", 0o777, status.st_uid, status.st_gid, os.readlink(place), _disk.xattrs(place))
            if not stat.S_ISREG(status.st_mode):
                raise TuningError(f"{path}: is neither a file nor a link, so it is left alone; move it away")
            with open(place, "rb") as stream:
                content = stream.read()
            return FileState(
                content, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, None, _disk.xattrs(place)
            )
        except OSError as error:
            if error.errno in _disk.ABSENT:
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

    def allows(self, limit: int, hard: int) -> bool:
        """Tell whether a process here can have this hard limit, found by trying in a child process."""
        pid = os.fork()
        if pid == 0:
            try:
                resource.setrlimit(limit, (resource.getrlimit(limit)[0], hard))
            except (OSError, ValueError):
                os._exit(1)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    # -- changing --------------------------------------------------------------------------------------------------

    def poke(self, path: str, text: str) -> None:
        """Write a kernel value in place."""
        try:
            self._kernel(self.at(path), text)
        except OSError as error:
            raise TuningError(f"{path}: the kernel refused {text!r} ({error.strerror})") from error

    def replace(self, path: str, state: FileState) -> None:
        """Put a file (or link) in place of what is there, atomically and durably."""
        self.commands.unsettle()
        try:
            _disk.put(self.at(path), state, lambda fresh: self._label(fresh, path))
        except OSError as error:
            raise TuningError(f"{path}: cannot be written ({error.strerror})") from error

    def remove(self, path: str) -> None:
        """Remove a file or link durably; one that is gone already is fine."""
        self.commands.unsettle()
        try:
            _disk.drop(self.at(path))
        except OSError as error:
            raise TuningError(f"{path}: cannot be removed ({error.strerror})") from error

    def sweep(self, path: str) -> None:
        """Remove what a run that was killed while it wrote `path` may have left beside it."""
        try:
            _disk.discard(self.at(path) + _disk.NEW)
        except OSError as error:
            raise TuningError(f"{path}{_disk.NEW}: cannot be removed ({error.strerror})") from error

    def prune(self, folder: str) -> None:
        """Remove a folder that we made, if nobody else keeps anything in it."""
        try:
            os.rmdir(self.at(folder))
        except OSError as error:
            if error.errno not in (*_disk.ABSENT, errno.ENOTEMPTY, errno.EEXIST):
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
        try:
            descriptor = _disk.claim(self.at(folder), seconds)
        except TimeoutError as error:
            raise TuningError(f"{folder}: another run holds this host; wait for it to end and run again") from error
        except OSError as error:
            raise TuningError(f"{folder}: cannot be opened as a folder ({error.strerror})") from error
        try:
            yield
        finally:
            with suppress(TuningError):  # an empty folder that stays behind is no reason to fail what was done
                self.prune(folder)
            os.close(descriptor)

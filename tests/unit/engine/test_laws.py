# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The laws of the engine on a temporary tree: idempotent, exact, silent in check mode, safe at every single write."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils import _disk, _host
from ansible_collections.gpu_fleet.node.plugins.module_utils._engine import _journal
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

from ..machine import THP, Box, build, inform, kernel, live, picture, reopen, sysctl, thp, tune, units

MEMORY = sysctl(
    vm__swappiness="10",
    vm__dirty_bytes="1073741824",
    kernel__sem="250 32000 100 128",
    floors={"vm.max_map_count": "1048576", "fs.nr_open": "1000"},
)
LOGINS: dict[str, Any] = {
    "name": "logins",
    "limits": [
        {"domain": domain, "type": "-", "item": "nofile", "value": "2000000"} for domain in ("*", "root", "@ml")
    ],
}
OPEN_FILES = sysctl(fs__nr_open="2097152")
PAGES = thp(enabled="madvise", defrag="defer+madvise")
EDITED = sysctl(vm__swappiness="1", net__ipv4__tcp_retries2="5", floors={"vm.min_free_kbytes": "70000"})
JOBS = units(
    "jobs",
    gpu__jobs_slice={"MemoryMax": "32G", "MemoryHigh": "30G", "TasksMax": "50%", "AllowedCPUs": "0-3"},
    user___slice={"MemoryMax": "16G"},
    slurmd_service={"LimitMEMLOCK": "infinity", "MemoryMax": "reserve"},
    manager={"DefaultLimitNOFILE": "65536:524288"},
)
OTHER_JOBS = units("jobs", gpu__jobs_slice={"MemoryMax": "40G"}, slurmd_service={"LimitMEMLOCK": "1G"})
# A slice with processes in it: the kernel holds what it has, and takes no empty list.
RUNNING = {
    "/run/systemd/groups.json": '{"gpu.slice": "/gpu.slice"}',
    "/sys/devices/system/cpu/possible": "0-7\n",
    "/sys/devices/system/cpu/online": "0-5\n",
    "/sys/devices/system/node/possible": "0-1\n",
    "/sys/devices/system/node/has_memory": "0-1\n",
    "/sys/fs/cgroup/gpu.slice/cpuset.cpus": "0-7\n",
    "/sys/fs/cgroup/gpu.slice/cpuset.mems": "0-1\n",
}
BOUND = units("jobs", gpu_slice={"AllowedCPUs": "0-1", "AllowedMemoryNodes": "1", "MemoryMax": "4G"})
FILES = {
    "name": "tools",
    "files": [
        {"path": "/usr/local/bin/tool", "content": "#!/bin/sh\n", "mode": "0755"},
        {"path": "/etc/machine-id", "content": "0123456789abcdef0123456789abcdef\n", "mode": "0600"},
    ],
}
OTHER_FILES = {"name": "tools", "files": [{"path": "/usr/local/bin/tool", "content": "#!/bin/bash\n", "mode": "0755"}]}
STATES: dict[str, tuple[list[Any], list[Any]]] = {  # what was applied before -> what is applied now
    "first": ([], [MEMORY, PAGES]),
    "again with other values": ([MEMORY, PAGES], [EDITED, thp(enabled="never")]),
    "one set only": ([MEMORY, PAGES], [EDITED]),
    "nothing declared": ([MEMORY, PAGES], [{"name": "memory"}, {"name": "pages"}]),
    "limits and what they need": ([], [OPEN_FILES, LOGINS]),
    "limits that go with what they need": ([OPEN_FILES, LOGINS], [sysctl(), {"name": "logins"}]),
    "without our folders": ([], [thp(enabled="never")]),
    "slices and services": ([], [JOBS]),
    "other slices and services": ([JOBS], [OTHER_JOBS]),
    "no slices any more": ([JOBS], [{"name": "jobs"}]),
    "lists of a slice that runs": ([], [BOUND]),
    "lists that are lifted while it runs": ([BOUND], [units("jobs", gpu_slice={"MemoryMax": "5G"})]),
    "files": ([], [FILES]),
    "other files": ([FILES], [OTHER_FILES]),
}
GONE = [{"name": name} for name in ("memory", "pages", "logins", "jobs", "tools")]


def box(tmp_path: Path, case: str = "first") -> Box:
    """Build the machine of a case; one of them has no tmpfiles.d, and some have a slice with processes in it."""
    host = build(tmp_path / "root", RUNNING if "runs" in case else None)
    if case == "without our folders":
        (tmp_path / "root/etc/tmpfiles.d/keep.conf").unlink()
        (tmp_path / "root/etc/tmpfiles.d").rmdir()
    return host


@pytest.mark.parametrize("case", STATES)
def test_twice_changes_nothing(tmp_path: Path, case: str) -> None:
    host = box(tmp_path, case)
    before, now = STATES[case]
    if before:
        tune(host, *before)
    assert tune(host, *now)["changed"]
    once = picture(host)
    again = tune(host, *now)
    assert not again["changed"] and again["changes"] == [] and again["diff"] == []
    assert picture(host) == once


@pytest.mark.parametrize("case", STATES)
def test_apply_and_take_back_is_the_first_state(tmp_path: Path, case: str) -> None:
    host = box(tmp_path, case)
    first = picture(host)
    for sets in STATES[case]:
        if sets:
            tune(host, *sets)
    tune(host, *GONE, state="absent")
    assert picture(host) == first
    assert not tune(host, *GONE, state="absent")["changed"]


@pytest.mark.parametrize("case", STATES)
def test_check_mode_writes_nothing_and_foretells(tmp_path: Path, case: str) -> None:
    host = box(tmp_path, case)
    before, now = STATES[case]
    if before:
        tune(host, *before)
    first = picture(host)
    foretold = tune(host, *now, check=True)
    assert picture(host) == first
    done = tune(host, *now)
    for key in ("changed", "changes", "diff", "settings", "not_applicable", "conflicts", "pending"):
        assert foretold[key] == done[key], key


def test_one_call_and_single_calls_give_the_same_host(tmp_path: Path) -> None:
    together, apart = build(tmp_path / "together"), build(tmp_path / "apart")
    tune(together, MEMORY, PAGES)
    tune(apart, PAGES)
    tune(apart, MEMORY)
    assert picture(together) == picture(apart)


@pytest.mark.parametrize(
    ("path", "content", "view"),
    [
        ("/proc/sys/vm/swappiness", "33\n", "live"),
        (f"{THP}/enabled", "always madvise [never]\n", "live"),
        ("/etc/sysctl.d/zz-gpu-fleet-memory.conf", "vm.swappiness = 10\n", "stored"),
        ("/etc/tmpfiles.d/00-gpu-fleet-pages.conf", "", "stored"),
    ],
)
def test_drift_is_seen_named_and_repaired(tmp_path: Path, path: str, content: str, view: str) -> None:
    host = box(tmp_path)
    tune(host, MEMORY, PAGES)
    good = picture(host)
    assert inform(host, MEMORY, PAGES)["in_sync"]
    (tmp_path / f"root{path}").write_text(content)
    audit = inform(host, MEMORY, PAGES)
    assert not audit["in_sync"] and view in {row["view"] for row in audit["drift"]}
    assert picture(host) != good, "the audit itself repairs nothing"
    assert tune(host, MEMORY, PAGES)["changed"]
    assert picture(host) == good and inform(host, MEMORY, PAGES)["in_sync"]


def test_a_file_mode_is_drift_too(tmp_path: Path) -> None:
    host = box(tmp_path)
    tune(host, MEMORY)
    place = tmp_path / "root/etc/sysctl.d/zz-gpu-fleet-memory.conf"
    place.chmod(0o600)
    assert [row["view"] for row in inform(host, MEMORY)["drift"]] == ["stored"]
    tune(host, MEMORY)
    assert place.stat().st_mode & 0o777 == 0o644


# -- every single write ------------------------------------------------------------------------------------------------

WRITES = ("write", "fsync", "fchmod", "replace", "unlink", "mkdir", "rmdir", "symlink")


class Tripwire:
    """Stand in for the `os` module of the host, and let the n-th call that changes something go wrong."""

    def __init__(self, at: int, trip: Callable[[], None]) -> None:
        """Count to `at`, then call `trip`."""
        self.count, self.at, self.trip = 0, at, trip

    def __getattr__(self, name: str) -> Any:
        """Return the real function, counted if it changes something."""
        real = getattr(os, name)
        if name == "makedirs":
            return self._makedirs
        return self._counted(real) if name in WRITES else real

    def _makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        if not os.path.isdir(path):
            self.step()
        os.makedirs(path, mode, exist_ok)

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.step()
            return real(*args, **kwargs)

        return call

    def step(self) -> None:
        """Count one change."""
        self.count += 1
        if self.count == self.at:
            self.trip()


def wired(host: Box, monkeypatch: pytest.MonkeyPatch, wire: Tripwire) -> None:
    """Put the wire before every change of the host, the kernel's included."""

    def counted_kernel(place: str, text: str) -> None:
        wire.step()
        kernel(place, text)

    monkeypatch.setattr(_host, "os", wire)
    monkeypatch.setattr(_disk, "os", wire)
    host._kernel = counted_kernel
    manager = host.commands._runner
    assert manager is not None

    def counted_manager(words: Sequence[str]) -> tuple[int, str]:
        try:
            if words[1] != "show":
                wire.step()
        except OSError as error:
            return 1, f"Failed to {words[1]}: {error.strerror}"
        return manager(words)

    host.commands._runner = counted_manager


def changes_of(tmp_path: Path, case: str) -> int:
    """Return how many changes of the machine a case makes."""
    with pytest.MonkeyPatch.context() as patch:
        host = box(tmp_path / "count", case)
        before, now = STATES[case]
        if before:
            tune(host, *before)
        wire = Tripwire(0, lambda: None)
        wired(host, patch, wire)
        tune(host, *now)
        return wire.count


def full() -> None:
    """Fail the way a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("case", STATES)
def test_any_write_that_fails_undoes_all_at_once(tmp_path: Path, case: str) -> None:
    total = changes_of(tmp_path, case)
    assert total > 5
    for n in range(1, total + 1):
        host = box(tmp_path / str(n), case)
        before, now = STATES[case]
        if before:
            tune(host, *before)
        first = picture(host)
        with pytest.MonkeyPatch.context() as patch:
            wired(host, patch, Tripwire(n, full))
            try:
                tune(host, *now)
            except (TuningError, OSError) as error:
                assert isinstance(error, TuningError), f"write {n} of {total} raised {error!r}"
                host = reopen(host)
            else:
                continue  # tidying up is not part of the transaction
        tune(host, check=True)
        assert picture(host) == first, f"write {n} of {total}"


def crash(host: Box, n: int, sets: list[Any]) -> int:
    """Run in a child process that ends without any clean-up at change n; return its exit status."""
    pid = os.fork()
    if pid == 0:
        with pytest.MonkeyPatch.context() as patch:
            wired(host, patch, Tripwire(n, lambda: os._exit(77)))
            try:
                tune(host, *sets)
            finally:
                os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("way", ["next run", "rollback", "audit"])
@pytest.mark.parametrize("case", STATES)
def test_a_killed_run_is_recovered(tmp_path: Path, case: str, way: str) -> None:
    total = changes_of(tmp_path, case)
    before, now = STATES[case]
    good = box(tmp_path / "good", case)
    untouched = picture(good)
    for sets in (before, now):
        if sets:
            tune(good, *sets)
    for n in range(1, total + 1):
        host = box(tmp_path / str(n), case)
        if before:
            tune(host, *before)
        assert crash(host, n, now) == 77, f"write {n} of {total}"
        if way == "audit":
            report = inform(host, *now)
            cut = [row for row in report["drift"] if "cut short" in str(row["by"])]
            assert bool(cut) == bool(_journal.load(host).transaction), f"write {n} of {total}"
        elif way == "next run":
            begun = bool(_journal.load(host).transaction)
            warned = tune(host, *now)["warned"]
            assert any("cut short" in text for text in warned) == begun
            assert picture(host) == picture(good), f"write {n} of {total}"
        else:
            tune(host, *GONE, state="absent")
            assert picture(host) == untouched, f"write {n} of {total}"


def test_a_killed_run_is_undone_by_a_run_for_another_set(tmp_path: Path) -> None:
    other = sysctl("other", kernel__numa_balancing="0")
    good = box(tmp_path / "good")
    tune(good, other)
    for n in range(1, changes_of(tmp_path, "first") + 1):
        host = box(tmp_path / str(n))
        crash(host, n, [MEMORY, PAGES])
        begun = bool(_journal.load(host).transaction)
        tune(host, other)
        committed = not begun and bool(
            {"memory", "pages"} & {one.set_name for one in _journal.load(host).entries.values()}
        )
        if not committed:
            assert picture(host) == picture(good), f"write {n}"
        tune(host, *GONE, {"name": "other"}, state="absent")
        assert picture(host) == picture(box(tmp_path / f"fresh{n}")), f"write {n}"


def test_a_killed_recovery_is_recovered(tmp_path: Path) -> None:
    good = box(tmp_path / "good")
    tune(good, MEMORY, PAGES)
    total = changes_of(tmp_path, "first")
    for n in (total // 3, total // 2, total - 2):
        m = 0
        while True:
            m += 1
            host = box(tmp_path / f"{n}-{m}")
            assert crash(host, n, [MEMORY, PAGES]) == 77
            if crash(host, m, [MEMORY, PAGES]) == 0:
                break
            tune(host, MEMORY, PAGES)
            assert picture(host) == picture(good), f"write {n}, then {m}"
        assert m > 5


def test_what_somebody_changed_after_a_crash_keeps_its_original(tmp_path: Path) -> None:
    host = box(tmp_path)
    total = changes_of(tmp_path, "first")
    crash(host, total - 3, [MEMORY, PAGES])
    (tmp_path / "root/proc/sys/vm/swappiness").write_text("42\n")
    result = tune(host, *GONE, state="absent")
    assert any("swappiness" in text for text in result["warned"])
    assert live(host, "/proc/sys/vm/swappiness") == "42"
    tune(host, *GONE, state="absent", force=True)
    assert live(host, "/proc/sys/vm/swappiness") == "60"
    assert not (tmp_path / "root/var/lib/gpu-fleet").exists()


# -- two runs at once --------------------------------------------------------------------------------------------------


def _slow_run(root: str, started: Any) -> None:
    def slow(place: str, text: str) -> None:
        started.set()
        time.sleep(1.0)
        kernel(place, text)

    tune(Box(root, live=True, kernel=slow), sysctl(vm__swappiness="10"))


def test_two_runs_at_once(tmp_path: Path) -> None:
    host = box(tmp_path)
    context = multiprocessing.get_context("fork")
    started = context.Event()
    other = context.Process(target=_slow_run, args=(host.root, started))
    other.start()
    assert started.wait(10)
    with pytest.raises(TuningError, match="another run holds this host"):
        tune(host, sysctl(vm__swappiness="20"), lock_timeout=0)
    assert tune(host, sysctl(vm__swappiness="20"), lock_timeout=10)["changed"]
    other.join()
    assert other.exitcode == 0 and live(host, "/proc/sys/vm/swappiness") == "20"
    tune(host, *GONE, state="absent")
    assert live(host, "/proc/sys/vm/swappiness") == "60"

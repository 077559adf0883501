# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Children that hang, lie, crash or leave others behind; the list of those that cannot be ended; the kernel log."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import (
    _child,
    _kernel_log,
    _process,
    _read,
    _stuck,
)


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def shell(script: str, seconds: float = 5.0) -> _child.Result:
    """Run a shell script as the child."""
    return _child.command(["/bin/sh", "-c", script], soon(seconds))


def test_a_function_answers_with_what_json_can_carry() -> None:
    result = _child.call(lambda: {"answer": ["ü", 1, None]}, soon())
    assert (result.status, result.code, json.loads(result.output)) == ("ended", 0, {"answer": ["ü", 1, None]})


def test_a_long_answer_does_not_fill_the_pipe_for_ever() -> None:
    assert len(json.loads(_child.call(lambda: "x" * 3_000_000, soon()).output)) == 3_000_000


def test_what_was_said_before_the_deadline_is_heard() -> None:
    def answers() -> Iterator[Any]:
        yield {"first": 1}
        yield "second\nline"
        time.sleep(3600)

    result = _child.stream(answers, soon(0.3))
    assert (result.status, result.output) == ("timeout", '{"first": 1}\n"second\\nline"\n')


def test_a_function_that_raises_or_dies_is_a_result() -> None:
    raised = _child.call(lambda: int("x"), soon())
    assert (raised.status, raised.code, raised.output) == ("ended", _child.RAISED, "")
    assert raised.errors == "ValueError: invalid literal for int() with base 10: 'x'"
    assert _child.call(os.abort, soon()).code == -signal.SIGABRT
    assert _child.call(lambda: sys.exit(0), soon()).code == _child.RAISED


def test_what_a_library_prints_is_not_its_answer() -> None:
    def chatter() -> int:
        os.write(1, b"driver says hello")
        return 5

    assert _child.call(chatter, soon()).output == "5"


def test_a_command_has_no_preloads_and_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/nonexistent/libjemalloc.so.2")
    result = shell('cat; echo "$LD_PRELOAD|$HOME" ; echo problem >&2; exit 3')
    assert (result.code, result.output, result.errors) == (3, f"|{os.environ['HOME']}\n", "problem\n")


def test_a_command_that_is_not_there_says_so() -> None:
    result = _child.command(["/nonexistent/tool"], soon())
    assert (result.code, result.errors) == (_child.NOT_STARTED, "/nonexistent/tool: No such file or directory")


def test_a_parent_that_ignores_its_children_still_hears_them() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert shell("exit 3").code == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_child_holds_none_of_our_descriptors(tmp_path: Path) -> None:
    with open(tmp_path / "held", "w", encoding="utf-8") as held:
        os.set_inheritable(held.fileno(), True)
        listing = shell("ls -l /proc/self/fd")
    assert "held" not in listing.output


@pytest.mark.parametrize(
    "script",
    [
        "trap '' TERM; sleep 3600 & echo $! >PIDS; wait",
        "sleep 3600",
        "setsid sleep 3600 & echo $! >PIDS; sleep 3600",
        "while :; do echo no end of it; done",
        "exec cat /dev/zero",
    ],
)
def test_a_child_that_hangs_is_ended_with_its_family(script: str, tmp_path: Path) -> None:
    began = time.monotonic()
    result = shell(script.replace("PIDS", str(tmp_path / "pids")), 0.5)
    assert (result.status, result.code, result.left) == ("timeout", None, ())
    assert 0.4 < time.monotonic() - began < 0.5 + _child.GRACE + 0.5
    assert len(result.output) <= _child.MOST
    for pid in (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []:
        found = _process.look_up(int(pid))
        assert found is None or found.state in _process.GONE


def test_a_grandchild_that_keeps_the_pipe_is_neither_waited_for_nor_left(tmp_path: Path) -> None:
    began = time.monotonic()
    result = shell(f"sleep 3600 & echo $! >{tmp_path}/pid; echo done")
    assert (result.status, result.code, result.output) == ("ended", 0, "done\n")
    assert time.monotonic() - began < 2
    found = _process.look_up(int((tmp_path / "pid").read_text()))
    assert found is None or found.state in _process.GONE


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    me = _process.look_up(os.getpid())
    assert me is not None and _process.lives(me.pid, me.start) and not _process.lives(me.pid, me.start + 1)
    assert _process.look_up(2**22 + 1) is None


def test_a_name_with_brackets_is_read() -> None:
    line = "42 (a ) S 1) b) D 7 8 9 " + " ".join(str(number) for number in range(4, 30))
    assert _process.parse_stat(line) == _process.Process(42, 19, 7, 8, 9, "D")


def test_stuck_children_are_remembered_as_long_as_they_live(tmp_path: Path) -> None:
    host = Host(str(tmp_path), live=True)
    me = _process.look_up(os.getpid())
    assert me is not None
    gone = _process.Process(me.pid, me.start + 1)
    assert _stuck.remember(host, [me], "nvidia-smi -q -x") is None
    assert _stuck.remember(host, [gone], "NVML") is None
    assert _stuck.standing(host) == [_stuck.Stuck(me.pid, me.start, "nvidia-smi -q -x")]
    place = tmp_path / _stuck.FILE.lstrip("/")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600 and stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    _stuck.tidy(host)
    assert place.exists()
    place.write_text(json.dumps([{"pid": gone.pid, "start": gone.start, "command": "NVML"}]))
    _stuck.tidy(host)
    assert not place.parent.exists()


@pytest.mark.parametrize("content", ["", "no json", "[1]", '{"pid": 1}', '[{"pid": "x", "start": 1, "command": ""}]'])
def test_a_list_that_is_not_understood_is_taken_away(content: str, tmp_path: Path) -> None:
    place = tmp_path / _stuck.FILE.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text(content)
    host = Host(str(tmp_path), live=True)
    assert _stuck.standing(host) == []
    _stuck.tidy(host)
    assert not place.exists()


def test_a_list_that_cannot_be_kept_says_why(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    me = _process.look_up(os.getpid())
    assert me is not None
    problem = _stuck.remember(Host(str(tmp_path), live=True), [me], "NVML")
    assert problem is not None and problem.startswith("/run/gpu-fleet: cannot be made")


def test_the_kernel_log_has_messages_and_moments(tmp_path: Path) -> None:
    log = "4,100,5000000,-;first; with a semicolon\n SUBSYSTEM=pci\n30,101,6500000,c,caller=T1;second\nnonsense\n"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text(log)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu 1 2\nbtime 1700000000\n")
    records, reason = _kernel_log.read(Host(str(tmp_path), live=True))
    assert reason is None
    assert [(one.message, one.when) for one in records] == [
        ("first; with a semicolon", 1700000005.0),
        ("second", 1700000006.5),
    ]


def test_a_kernel_log_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert _kernel_log.read(Host(str(tmp_path), live=True)) == (
        [],
        "/dev/kmsg: cannot be read (No such file or directory)",
    )


@pytest.mark.parametrize(
    ("content", "text", "number"),
    [("12\n", "12", 12), ("-1", "-1", -1), ("max\n", "max", None), (None, None, None), ("", "", None)],
)
def test_a_file_gives_a_value_or_nothing(content: str | None, text: Any, number: int | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "file").write_text(content)
    host = Host(str(tmp_path))
    assert (_read.text(host, "/file"), _read.number(host, "/file")) == (text, number)
    assert _read.names(host, "/file") == []

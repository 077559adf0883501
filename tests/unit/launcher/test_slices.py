# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How gpu-run enters a slice, what it asks of whom, and what it refuses; and what it does with tools that hang."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _defaults, _main, _options, _scene, _slice
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import RefusalError

from .host import build, put, stand_in

V2 = "0::/user.slice/user-1000.slice/session-3.scope"
V1 = "4:memory:/user.slice\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope"
INSIDE = {
    V2: "0::/gpu.slice/gpu-jobs.slice/x.scope",
    V1: "4:memory:/gpu.slice/gpu-jobs.slice/x.scope\n1:name=systemd:/",
}
JOB = _options.Options(("job",))


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for stand-ins, before the programs of this machine."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:/usr/bin:/bin")
    return tmp_path / "tools"


def root(folder: Path, groups: str = V2) -> str:
    put(folder / "root", {f"proc/{pid}/cgroup": groups for pid in ("self", str(os.getpid()))})
    return str(folder / "root")


def manager(tools: Path, groups: str = V2) -> None:
    """Stand in for busctl and pkexec: note the words, and move the process."""
    groups_file = tools.parent / "root/proc/self/cgroup"
    script = f'env >{tools}/env\nprintf "%s\\n" "$@" >{tools}/said\nprintf "%s\\n" "{INSIDE[groups]}" >{groups_file}'
    for name in ("busctl", "pkexec"):
        stand_in(tools, name, script)


@pytest.mark.parametrize("groups", [V2, V1])
def test_root_makes_a_scope_of_the_process_itself(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, groups: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    place = root(tmp_path, groups)
    manager(tools, groups)
    assert _slice.enter("gpu-jobs.slice", "/usr/local/bin/gpu-run", place) is None
    said = (tools / "said").read_text().splitlines()
    pid = str(os.getpid())
    at = said.index("StartTransientUnit")
    assert said[at + 2 : at + 5] == [f"gpu-run-{pid}.scope", "fail", "3"]
    assert said[at + 5 :] == [
        *("PIDs", "au", "1", pid, "Slice", "s", "gpu-jobs.slice"),
        *("CollectMode", "s", "inactive-or-failed", "0"),
    ]


def test_a_user_asks_pkexec_for_that_one_command(tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("SHELL", "/odd/shell")  # pkexec refuses one that is not in /etc/shells
    place = root(tmp_path)
    manager(tools)
    assert _slice.enter("gpu-jobs.slice", "/usr/local/bin/gpu-run", place) is None
    said = (tools / "said").read_text().splitlines()
    assert said == [
        "--disable-internal-agent",
        "/usr/local/bin/gpu-run",
        "--enter=gpu-jobs.slice",
        f"--pid={os.getpid()}",
    ]
    assert "/odd/shell" not in (tools / "env").read_text()


def test_one_who_is_inside_stays(tmp_path: Path, tools: Path) -> None:
    stand_in(tools, "busctl", "exit 1")
    stand_in(tools, "pkexec", "exit 1")
    assert _slice.enter("gpu-jobs.slice", "x", root(tmp_path, INSIDE[V2])) is None
    assert _slice.enter("gpu.slice", "x", root(tmp_path, INSIDE[V2])) is None


@pytest.mark.parametrize("euid", [0, 1000])
def test_what_systemd_refuses_is_one_line_or_the_end(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, euid: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    for name in ("busctl", "pkexec"):
        stand_in(tools, name, "printf '\\nNot authorized\\n\\nThis incident has been reported.\\n' >&2; exit 127")
    lines = _main._enter(JOB, "gpu-jobs.slice", root(tmp_path))
    assert len(lines) == 1 and "Not authorized" in lines[0] and "runs outside of it" in lines[0]
    with pytest.raises(RefusalError, match="Not authorized") as refusal:
        _main._enter(_options.Options(("job",), strict=True), "gpu-jobs.slice", root(tmp_path))
    assert refusal.value.status == 1


def test_without_pkexec_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _slice.enter("gpu-jobs.slice", "x", root(tmp_path)) == "pkexec not found"


def test_systemd_that_promises_and_does_not_move(tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_slice, "PATIENCE", 0.2)
    for name in ("busctl", "pkexec"):
        stand_in(tools, name, "exit 0")
    assert _slice.enter("gpu-jobs.slice", "x", root(tmp_path)) == "systemd has not moved this process"


@pytest.mark.parametrize(
    "groups",
    [
        "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0",
        "9:memory:/slurm/uid_1000/job_12\n1:name=systemd:/system.slice/slurmd.service",
        "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-0a1b.scope",
        "0::/system.slice/docker-0a1b.scope",
        "4:memory:/docker/0a1b",
        "0::/system.slice/dbus-:1.2.service/slurmstepd.scope",
        "0::/machine.slice/libpod-0a1b.scope/container",
    ],
)
def test_nobody_leaves_the_control_group_of_a_scheduler(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, groups: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    stand_in(tools, "busctl", f"touch {tools}/asked")
    place = root(tmp_path, groups)
    put(tmp_path / "root", {"proc/1/cgroup": "9:memory:/\n4:memory:/\n1:name=systemd:/init.scope\n0::/init.scope"})
    reason = _slice.enter("gpu-jobs.slice", "x", place)
    assert reason is not None and "of a scheduler or container" in reason and not (tools / "asked").exists()


@pytest.mark.parametrize(
    ("manager_is", "groups"),
    [
        (
            "0::/machine.slice/libpod-0a1b.scope/container/init.scope",
            "0::/machine.slice/libpod-0a1b.scope/container/user.slice",
        ),
        (
            "4:memory:/libpod_parent/libpod-0a1b\n1:name=systemd:/libpod_parent/libpod-0a1b/init.scope",
            "4:memory:/libpod_parent/libpod-0a1b/user.slice\n1:name=systemd:/libpod_parent/libpod-0a1b/user.slice/x.scope",
        ),
    ],
)
def test_a_container_with_a_systemd_of_its_own_has_slices_of_its_own(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, manager_is: str, groups: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    place = root(tmp_path, groups)
    put(tmp_path / "root", {"proc/1/cgroup": manager_is})
    manager(tools)
    assert _slice.enter("gpu-jobs.slice", "x", place) is None
    inner = "\n".join(f"{line}/docker-0a1b.scope" for line in groups.splitlines())
    assert "of a scheduler or container" in str(_slice.enter("gpu-jobs.slice", "x", root(tmp_path, inner)))


# -- what runs as root for a user --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uid", "words", "allowed", "said"),
    [
        ("", ("--enter=gpu.slice", "--pid={own}"), "gpu.slice", "is for pkexec"),
        ("{own}", ("--enter=gpu.slice",), "gpu.slice", "is for pkexec"),
        ("{own}", ("--enter=gpu.slice", "--pid=x"), "gpu.slice", "is for pkexec"),
        ("{own}", ("--enter=gpu.slice", "--pid={own}", "--", "sh"), "gpu.slice", "is for pkexec"),
        ("{own}", ("--enter=other.slice", "--pid={own}"), "gpu.slice", "is not the slice of this host's jobs"),
        ("{own}", ("--enter=", "--pid={own}"), "", "is not the slice of this host's jobs"),
        ("4242", ("--enter=gpu.slice", "--pid={own}"), "gpu.slice", "is not a process of the user"),
        ("{own}", ("--enter=gpu.slice", "--pid=99999999"), "gpu.slice", "is not a process of the user"),
    ],
)
def test_root_moves_the_user_s_own_processes_into_the_administrator_s_slice_only(
    monkeypatch: pytest.MonkeyPatch, uid: str, words: tuple[str, ...], allowed: str, said: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PKEXEC_UID", uid.format(own=os.getuid()))
    monkeypatch.setattr(_slice, "adopt", lambda *_words: pytest.fail("moved"))
    given = [word.format(own=os.getpid()) for word in words]
    with pytest.raises(RefusalError, match=said):
        _slice.enter_for_user(given, allowed)


def test_root_moves_the_process_of_the_user_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PKEXEC_UID", str(os.getuid()))
    monkeypatch.setattr(_slice, "adopt", lambda *words: moved.append(words))
    _slice.enter_for_user(("--enter=gpu.slice", f"--pid={os.getpid()}"), "gpu.slice")
    assert moved == [("gpu.slice", os.getpid(), "/")]


# -- tools that hang, and the defaults file ----------------------------------------------------------------------------


def test_a_tool_that_hangs_is_asked_once_and_ended(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_scene, "PATIENCE", 0.3)
    stand_in(tools, "nvidia-smi", f"trap '' TERM\necho $$ >>{tools}/pids\nsleep 3600 & wait")
    nodes = {0: {"cpus": "0"}, 1: {"cpus": "1"}}
    build(tmp_path / "root", {"driver": False, "nodes": nodes, "gpus": [{"node": -1, "cpus": "0-1"}, {"node": 1}]})
    started = time.monotonic()
    found = _scene.look({"CUDA_VISIBLE_DEVICES": "MIG-1"}, (), str(tmp_path / "root"))
    assert time.monotonic() - started < 60
    assert found.obstacles == ("nvidia-smi: gives no answer within 0 s",)
    assert [gpu.place.node for gpu in found.gpus] == [None, 1]
    (pid,) = (tools / "pids").read_text().split()
    assert not Path("/proc", pid).exists()


def test_the_defaults_file_is_read_as_it_was_written() -> None:
    given = _defaults.Defaults({"B": "b = c # d", "OMP_NUM_THREADS": "8"}, "gpu-jobs.slice")
    assert _defaults.parse(_defaults.render(given)) == given
    assert _defaults.parse("{}") == _defaults.Defaults()


@pytest.mark.parametrize("name", ["gpu.slice", "gpu-jobs.slice", "a-b-c.slice", r"a\x2db.slice", "user-.slice"])
def test_names_of_slices(name: str) -> None:
    assert _defaults.is_slice(name) == (name != "user-.slice")


def test_what_is_no_default_is_said() -> None:
    given = _defaults.Defaults({"A B": "1", "CUDA_VISIBLE_DEVICES": "0", "C": "x\ny"}, "gpu--jobs.slice")
    parts = [
        "is not the name of a variable",
        "is set by gpu-run",
        "is not a text on one line",
        "is not the name of a slice",
    ]
    lines = _defaults.problems(given)
    assert len(lines) == len(parts) and all(part in line for part, line in zip(parts, lines)), lines

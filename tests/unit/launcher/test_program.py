# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program gpu-run itself, built and started: what it prints, what becomes of it, what it leaves alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import (
    _build,
    _main,
    _options,
    _plan,
    _scene,
    _slice,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import Plan

Run = Callable[..., "subprocess.CompletedProcess[str]"]
QUIET = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "NVIDIA", "SLURM"))}
NOTE = "gpu-run: no GPU is here for this process: it runs unbound\n"


@pytest.fixture
def program(tmp_path: Path) -> str:
    place = tmp_path / "gpu-run"
    place.write_bytes(_build.build())
    place.chmod(0o755)
    return str(place)


@pytest.fixture
def run(program: str, tmp_path: Path) -> Run:
    def start(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        # A module of the job's own folder and a PYTHONPATH must not get in the way.
        (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')\n")
        surroundings = {**QUIET, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", **environment}
        return subprocess.run(
            [program, *words], env=surroundings, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return start


def test_the_same_bytes_each_time() -> None:
    assert _build.build() == _build.build()


def test_output_and_status_are_the_program_s(run: Run) -> None:
    done = run("--", "sh", "-c", 'echo "a b"; exit 7')
    assert (done.stdout, done.returncode) == ("a b\n", 7) and done.stderr.count("\n") == 2
    assert done.stderr.endswith(NOTE)


def test_arguments_arrive_as_they_are(run: Run) -> None:
    words = ["--strict", "--", "a b", "$HOME", "*", "", "-x"]
    done = run("--", sys.executable, "-I", "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(done.stdout) == words


def test_strict_stops_before_the_program(run: Run) -> None:
    done = run("--strict", "--", "sh", "-c", "echo started")
    assert (done.stdout, done.returncode) == ("", 1) and "not started" in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--", "no-such-program"], 127, "no-such-program: not found"),
        (["--", "/etc/passwd"], 126, "/etc/passwd: cannot be executed"),
        (["sh"], 2, "usage"),
        (["--"], 2, "no command is given"),
        (["--gpus", "0", "--", "sh"], 2, "usage"),
        (["--gpu", "0", "--", "sh"], 2, "is not among the 0 GPUs"),
        (["--slice", "a b", "--", "sh"], 2, "is not the name of a slice"),
        (["--enter=gpu.slice", "--pid=1"], 2, "is for pkexec"),
        (["--enter=gpu.slice", "--pid=x"], 2, "wants --pid"),
    ],
)
def test_what_cannot_be_started_is_one_sentence(run: Run, words: list[str], status: int, said: str) -> None:
    done = run(*words)
    assert done.returncode == status and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_a_dry_run_starts_nothing(run: Run) -> None:
    done = run("--dry-run", "--slice", "gpu-jobs.slice", "--", "sh", "-c", "echo started")
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["command"] == ["sh", "-c", "echo started"]
    assert told["slice"] == "gpu-jobs.slice" and told["gpus"] == []


def test_signals_reach_the_program(program: str) -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(33)); print('ready', flush=True); signal.pause()"
    child = subprocess.Popen(
        [program, "--", sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=QUIET
    )
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 33
    child.stdout.close()


def test_the_program_is_bound_and_told(tmp_path: Path) -> None:
    """In a child: what the plan says is in force in the program that it becomes."""
    last = max(os.sched_getaffinity(0))
    code = "import json, os; print(json.dumps([sorted(os.sched_getaffinity(0)), os.environ['NCCL_DEBUG']]))"
    made = Plan(cpus=(last,), environment={"NCCL_DEBUG": "WARN"})
    assert json.loads(_in_child(tmp_path, made, [sys.executable, "-c", code])) == [[last], "WARN"]


def test_numactl_gets_the_nodes_and_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "bin" / "numactl"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{os.environ['PATH']}")
    for mode, option in (("preferred", "--preferred=1"), ("strict", "--membind=1")):
        told = _in_child(tmp_path, Plan(nodes=(1,), memory=mode), ["/bin/echo", "a b"])
        assert told == f"{option}|--|/bin/echo|a b|"


def _in_child(folder: Path, made: Plan, command: Sequence[str]) -> str:
    """Become the command in a child process and return what it prints."""
    out = folder / "out"
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            _main._become(_options.Options(tuple(command)), made, command[0])
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return out.read_text()


# -- F19: what a sandbox refuses ---------------------------------------------------------------------------------------


FILTER = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
refused = {"x86_64": (237, 238, 239), "aarch64": (235, 236, 237)}[os.uname().machine]
code = [(0x20, 0, 0, 0)]
code += [(0x15, len(refused) - index, 0, number) for index, number in enumerate(refused)]
code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | 1)]
program = b"".join(struct.pack("HBBI", *line) for line in code)
buffer = ctypes.create_string_buffer(program)
header = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.create_string_buffer(header), 0, 0):
    sys.exit(125)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def sandbox() -> list[str]:
    """Return the words that start a command where the memory-policy calls answer EPERM."""
    words = [sys.executable, "-c", FILTER]
    if subprocess.run([*words, "/bin/true"], check=False).returncode:
        pytest.skip("seccomp: this kernel takes no filter, so a sandbox cannot be made")
    return words


ASK = (
    "import sys; sys.path[:0] = sys.argv[1:]; "
    "from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _scene; print(_scene.unbindable())"
)


def test_f19_a_refused_policy_is_found_by_trying(
    sandbox: list[str], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numactl").write_text("#!/bin/sh\n")
    (tmp_path / "numactl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ask = [sys.executable, "-c", ASK, program]
    refused = subprocess.run([*sandbox, *ask], capture_output=True, text=True, check=True).stdout.strip()
    assert refused == "set_mempolicy is refused here (EPERM)"


def test_f19_no_numactl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert _scene.unbindable() == "numactl not found"


# -- what the host is asked --------------------------------------------------------------------------------------------


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, name: str = "nvidia-smi") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_uuids_of_the_tool_where_the_driver_s_files_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, 'echo "00000000:9F:00.0, GPU-abc"; echo "garbage"')
    notes: list[str] = []
    assert _scene._ask_uuids(notes) == {"0000:9f:00.0": "GPU-abc"} and notes == []


@pytest.mark.parametrize("script", ["exit 9", "exec sleep 100"])
def test_a_tool_that_fails_or_hangs_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    stand_in(tmp_path, monkeypatch, script)
    monkeypatch.setattr(_scene, "PATIENCE", 0.3)
    started, notes = time.monotonic(), list[str]()
    assert _scene._ask_uuids(notes) == {} and len(notes) == 1 and time.monotonic() - started < 5


def test_mig_instances_belong_to_their_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "GPU 0: NVIDIA A100 (UUID: GPU-aaaa)\\n"
        "  MIG 1g.5gb      Device  0: (UUID: MIG-1111)\\n"
        "GPU 1: NVIDIA A100 (UUID: GPU-bbbb)\\n"
        "  MIG 1g.5gb      Device  0: (UUID: MIG-2222)\\n"
    )
    stand_in(tmp_path, monkeypatch, f"printf '{listed}'")
    place = _scene._topology.Place(0, "test")
    gpus = [
        _scene.Gpu(number, f"0000:0{number}:00.0", f"GPU-{word}", place, ())
        for number, word in enumerate(("aaaa", "bbbb"))
    ]
    named = {"GPU_RUN_NAMES": "MIG-2222"}
    assert _scene._instances(named, gpus) == {"MIG-1111": "0000:00:00.0", "MIG-2222": "0000:01:00.0"}
    assert _scene._instances({}, gpus) == {}


# -- slices ------------------------------------------------------------------------------------------------------------


def test_a_scope_is_made_of_the_process_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, f'printf "%s\\n" "$@" >{tmp_path}/said', "busctl")
    assert _slice.adopt("gpu-jobs.slice", 123) is None
    said = (tmp_path / "said").read_text().split("\n")
    assert "gpu-run-123.scope" in said and said[said.index("PIDs") : said.index("PIDs") + 4] == [
        "PIDs",
        "au",
        "1",
        "123",
    ]
    assert said[said.index("Slice") + 2] == "gpu-jobs.slice"


def test_what_systemd_refuses_is_a_line_or_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("busctl", "pkexec"):
        stand_in(tmp_path, monkeypatch, 'echo "Error: Access denied" >&2; exit 1', name)
    notes = _main._enter(_options.Options(("x",)), "gpu-jobs.slice")
    assert len(notes) == 1 and "Access denied" in notes[0] and "outside" in notes[0]
    with pytest.raises(_options.RefusalError, match="Access denied"):
        _main._enter(_options.Options(("x",), strict=True), "gpu-jobs.slice")


@pytest.mark.parametrize(
    ("uid", "name", "pid", "said"),
    [
        ("", "gpu.slice", os.getpid(), "is for pkexec"),
        ("0", "other.slice", os.getpid(), "is not the slice"),
        ("4242", "gpu.slice", os.getpid(), "is not a process of the user"),
        ("0", "gpu.slice", 2**22 + 1, "is not a process of the user"),
    ],
)
def test_a_user_gets_own_processes_into_the_administrator_s_slice_only(
    monkeypatch: pytest.MonkeyPatch, uid: str, name: str, pid: int, said: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PKEXEC_UID", uid)
    monkeypatch.setattr(_slice, "adopt", lambda *_words: pytest.fail("adopted"))
    with pytest.raises(_options.RefusalError, match=said):
        _slice.enter_for_user(name, pid, "gpu.slice")


# -- the defaults file -------------------------------------------------------------------------------------------------


def test_a_defaults_file(tmp_path: Path) -> None:
    place = tmp_path / "gpu-run.json"
    assert _options.defaults(str(place)) == _options.Defaults()
    place.write_text('{"slice": "gpu-jobs.slice", "environment": {"OMP_NUM_THREADS": 8}}')
    assert _options.defaults(str(place)) == _options.Defaults("gpu-jobs.slice", {"OMP_NUM_THREADS": "8"})
    for wrong in ("{", "[]", "{}"):
        place.write_text(wrong)
        with pytest.raises(_options.RefusalError, match="is no defaults file"):
            _options.defaults(str(place))


def test_the_plan_of_this_machine() -> None:
    found: Any = _scene.look({"CUDA_VISIBLE_DEVICES": ""})
    assert set(found.cpus) == os.sched_getaffinity(0)
    assert _plan.plan(_options.Options(("x",)), _options.Defaults(), found).cpus == ()

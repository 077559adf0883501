# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program gpu-run itself, built and started: what it prints, what becomes of it, what it leaves alone."""

from __future__ import annotations

import ast
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher import _build

from .host import build, put, stand_in, uuid

Done = subprocess.CompletedProcess[str]
PACKAGE = "ansible_collections.gpu_fleet.node.plugins.module_utils._launcher"
# The same program on another root, which the installed one cannot be given.
ELSEWHERE = (
    "import sys; program, root = sys.argv[1:3]; sys.path.insert(0, program); "
    f"from {PACKAGE}._main import main; sys.exit(main(sys.argv[3:], root))"
)
NUMACTL = 'echo "$@" >>"{0}/said"\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"'
AFFINITY = (sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))")
NO_GPU = "gpu-run: no GPU is here for this process, so the command runs unbound\n"


@dataclass
class Box:
    """The program with a machine of two nodes; the second has one of the CPUs that the tester may use."""

    folder: Path
    program: str
    bare: bool = False  # without the programs of this machine

    @property
    def path(self) -> str:
        """Where programs are looked for."""
        return f"{self.folder / 'tools'}" + ("" if self.bare else ":/usr/bin:/bin")

    @property
    def last(self) -> int:
        """Return the CPU of the second node."""
        return max(os.sched_getaffinity(0))

    def installed(self, *words: str, environment: Mapping[str, str] | None = None) -> Done:
        """Start it as it is installed, on this very machine and without GPUs."""
        given = {"PATH": "/usr/bin:/bin", **({"CUDA_VISIBLE_DEVICES": ""} if environment is None else environment)}
        return subprocess.run(
            [self.program, *words], env=given, cwd=self.folder, capture_output=True, text=True, check=False
        )

    def run(self, *words: str, wrap: tuple[str, ...] = (), **environment: str) -> Done:
        """Start it on the machine."""
        words = (*wrap, sys.executable, "-IS", "-c", ELSEWHERE, self.program, str(self.folder / "root"), *words)
        given = {"PATH": self.path, **environment}
        return subprocess.run(words, env=given, capture_output=True, text=True, check=False)

    def said(self) -> list[str]:
        """Return what numactl was told, without its trial."""
        lines = (self.folder / "tools" / "said").read_text().splitlines()
        return [line for line in lines if not line.endswith("-- true")]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    place = tmp_path / "gpu-run"
    place.write_bytes(_build.build())
    place.chmod(0o755)
    made = Box(tmp_path, str(place))
    others = sorted(os.sched_getaffinity(0) - {made.last}) or [4095]
    nodes = {0: {"cpus": ",".join(map(str, others))}, 1: {"cpus": str(made.last)}}
    build(tmp_path / "root", {"nodes": nodes, "gpus": [{"node": 0}, {"node": 1}]})
    stand_in(tmp_path / "tools", "numactl", NUMACTL.format(tmp_path / "tools"))
    return made


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_same_bytes_each_time() -> None:
    assert _build.build() == _build.build()


def test_an_old_python_understands_the_start() -> None:
    with zipfile.ZipFile(io.BytesIO(_build.build())) as archive:
        ast.parse(archive.read("__main__.py").decode(), feature_version=(3, 6))


def test_nothing_of_the_job_gets_into_the_launcher(box: Box) -> None:
    for name in ("json.py", "re.py", "os.py"):
        (box.folder / name).write_text("raise SystemExit('the wrong module')\n")
    surroundings = {"PYTHONPATH": str(box.folder), "PYTHONHOME": "/nowhere", "CUDA_VISIBLE_DEVICES": ""}
    assert box.installed("--", "echo", "fine", environment=surroundings).stdout == "fine\n"


def test_a_start_takes_few_modules(box: Box) -> None:
    """Those that double the time to start are for the cases that need them."""
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {PACKAGE}._main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-IS", "-c", code, box.program], capture_output=True, text=True, check=True
    ).stdout.split()
    names = {name.rpartition(".")[2] for name in done}
    assert names & {"subprocess", "shutil", "ctypes", "csv", "_smi_tables", "_host", "socket", "tempfile"} == set()
    assert "_topology" in names


# -- what it leaves alone ----------------------------------------------------------------------------------------------


def test_output_and_status_are_those_of_the_command(box: Box) -> None:
    done = box.installed("--", "sh", "-c", 'echo "a b"; exit 7', environment={})
    assert (done.stdout, done.returncode) == ("a b\n", 7)


def test_arguments_arrive_as_they_are(box: Box) -> None:
    words = ["--strict", "--", "a b", "$HOME", "*", "", "-x", "\udcff"]
    done = box.installed("--", sys.executable, "-I", "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(done.stdout) == words


def test_the_command_keeps_the_name_that_it_was_called_by(box: Box) -> None:
    assert box.installed("--", "cat", "/proc/self/cmdline").stdout == "cat\0/proc/self/cmdline\0"


def test_environment_signals_and_limits_are_those_of_the_caller(box: Box) -> None:
    """Python adds LC_CTYPE where the locale is C, and ignores two signals: neither is for the command."""
    command = ["sh", "-c", "env | grep -v ^_=; grep -E '^(Sig(Ign|Blk)|Seccomp|Cpus)' /proc/self/status; ulimit -a"]
    given = {"PATH": "/usr/bin:/bin", "LANG": "C", "CUDA_VISIBLE_DEVICES": "", "ODD": "a=b c"}
    alone = subprocess.run(command, env=given, cwd=box.folder, capture_output=True, text=True, check=True)
    assert box.installed("--", *command, environment=given).stdout == alone.stdout


def test_it_becomes_the_command_and_descriptors_stay_open(box: Box) -> None:
    reader, writer = os.pipe()
    code = f"import os; os.write({writer}, str(os.getpid()).encode())"
    words = [box.program, "--", sys.executable, "-c", code]
    child = subprocess.Popen(words, pass_fds=(writer,), env={"PATH": "/usr/bin:/bin"}, stderr=subprocess.DEVNULL)
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == str(child.pid)
    assert child.wait(10) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command(box: Box, number: int) -> None:
    code = f"import signal, sys; signal.signal({int(number)}, lambda *_: sys.exit(33)); print('ready', flush=True)"
    words = [box.program, "--", sys.executable, "-c", f"{code}; signal.pause()"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin"})
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    child.send_signal(number)
    assert child.wait(10) == 33
    child.stdout.close()


def test_an_interrupt_while_it_looks_ends_it_without_a_word(box: Box) -> None:
    """A shell tells from the signal that a loop around the command is to end too."""
    build(box.folder / "bare", {"driver": False, "nodes": {0: {"cpus": "0"}}, "gpus": [{"node": 0}]})
    stand_in(box.folder / "tools", "nvidia-smi", f"echo >{box.folder}/asked; exec sleep 3")
    words = [sys.executable, "-IS", "-c", ELSEWHERE, box.program, str(box.folder / "bare"), "--", "true"]
    child = subprocess.Popen(words, env={"PATH": box.path}, stderr=subprocess.PIPE)
    until = time.monotonic() + 10
    while not (box.folder / "asked").exists() and time.monotonic() < until:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=10) == (None, b"") and child.returncode == -signal.SIGINT


def test_a_script_without_its_first_line_runs_as_in_a_shell(box: Box) -> None:
    script = box.folder / "job"
    script.write_text('echo "ran with $1"\n')
    script.chmod(0o755)
    assert box.installed("--", str(script), "a b").stdout == "ran with a b\n"


# -- what it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--", "no-such-program"], 127, "no-such-program: command not found"),
        (["--", "/etc/passwd"], 126, "/etc/passwd: cannot be executed"),
        (["sh"], 2, "usage"),
        (["--"], 2, "no command is given"),
        (["--gpus", "0", "--", "sh"], 2, "usage"),
        (["--gpu", "--", "sh"], 2, "usage"),
        (["--gpu", ",", "--", "sh"], 2, "--gpu: names no GPU"),
        (["--gpu", "0", "--", "sh"], 2, "--gpu 0: is not among the GPUs that this process was given: none"),
        (["--slice", "a b", "--", "sh"], 2, "is not the name of a slice"),
        (["--slice", "a--b.slice", "--", "sh"], 2, "is not the name of a slice"),
        (["--enter=gpu.slice", "--pid=1"], 2, "is for pkexec"),
        (["--enter=gpu.slice", "--pid=x"], 2, "is for pkexec"),
        (["--enter=gpu.slice"], 2, "is for pkexec"),
        (["--enter=gpu.slice", "--pid=1", "--", "sh"], 2, "is for pkexec"),
    ],
)
def test_what_cannot_be_started_is_one_sentence(box: Box, words: list[str], status: int, said: str) -> None:
    done = box.installed(*words)
    assert done.returncode == status and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_a_command_whose_interpreter_is_missing(box: Box) -> None:
    script = box.folder / "job"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    done = box.installed("--", str(script))
    assert done.returncode == 126 and done.stderr.endswith("job: no such file or directory\n")


def test_strict_stops_before_the_command(box: Box) -> None:
    done = box.installed("--strict", "--", "sh", "-c", "echo started")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.splitlines()[-1] == "gpu-run: not started, since --strict is set"


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        '{"environment": [], "slice": ""}',
        '{"environment": {"A B": "1"}}',
        '{"environment": {"A": 1}}',
        '{"slice": "x"}',
        '{"surplus": 1}',
        '{"environment": {"CUDA_VISIBLE_DEVICES": "0"}}',
    ],
)
def test_a_defaults_file_that_says_something_else_stops_the_start(box: Box, text: str) -> None:
    put(box.folder / "root", {"etc/gpu-fleet/gpu-run.json": text})
    done = box.run("--", "echo", "started")
    assert (done.stdout, done.returncode) == ("", 1)
    assert "/etc/gpu-fleet/gpu-run.json: " in done.stderr and done.stderr.count("\n") == 1


# -- what it does ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strict", "bound"), [((), "--preferred=1"), (("--strict",), "--membind=1")])
def test_cpus_and_memory_are_bound_and_the_list_is_by_uuid(box: Box, strict: tuple[str, ...], bound: str) -> None:
    code = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['CUDA_VISIBLE_DEVICES'])"
    done = box.run("--gpu", "1", *strict, "--", sys.executable, "-c", code)
    assert done.stdout == f"[{box.last}] {uuid(1)}\n" and done.stderr == "" and done.returncode == 0
    assert box.said() == [f"{bound} -- {sys.executable} -c {code}"]


def test_a_rank_is_near_its_gpu_and_sees_the_list_of_its_launcher(box: Box) -> None:
    code = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['CUDA_VISIBLE_DEVICES'])"
    done = box.run("--", sys.executable, "-c", code, LOCAL_RANK="1", CUDA_VISIBLE_DEVICES="0,1")
    assert done.stdout == f"[{box.last}] 0,1\n" and done.stderr == ""
    done = box.run("--isolate", "--", sys.executable, "-c", code, LOCAL_RANK="1", CUDA_VISIBLE_DEVICES="0,1")
    assert done.stdout == f"[{box.last}] {uuid(1)}\n"


def test_the_administrator_s_variables(box: Box) -> None:
    given = {"environment": {"OMP_NUM_THREADS": "8", "NCCL_DEBUG": "WARN"}, "slice": ""}
    put(box.folder / "root", {"etc/gpu-fleet/gpu-run.json": json.dumps(given)})
    done = box.run("--gpu", "1", "--", "sh", "-c", "echo $OMP_NUM_THREADS $NCCL_DEBUG", NCCL_DEBUG="INFO")
    assert done.stdout == "8 INFO\n"


def test_f26_a_preload_that_is_gone_spoils_no_program_s_output(box: Box) -> None:
    given = {"environment": {"LD_PRELOAD": "/nonexistent/libjemalloc.so.2"}, "slice": ""}
    put(box.folder / "root", {"etc/gpu-fleet/gpu-run.json": json.dumps(given)})
    done = box.run("--gpu", "1", "--", "sh", "-c", "echo ${LD_PRELOAD-unset}; true; exit 7")
    line = "gpu-run: /nonexistent/libjemalloc.so.2: is not here, so it is not preloaded\n"
    assert (done.stdout, done.stderr, done.returncode) == ("unset\n", line, 7)
    done = box.run("--gpu", "1", "--strict", "--", "sh", "-c", "echo started")
    assert (done.stdout, done.returncode) == ("", 1) and done.stderr.startswith(line)


def test_a_dry_run_starts_nothing(box: Box) -> None:
    done = box.run("--dry-run", "--gpu", "1", "--slice", "gpu-jobs.slice", "--", "sh", "-c", "echo started")
    told = json.loads(done.stdout)
    assert done.returncode == 0 and done.stderr == "" and told["command"] == ["sh", "-c", "echo started"]
    assert told["slice"] == "gpu-jobs.slice" and told["cpus"] == str(box.last)
    assert told["memory"] == {"mode": "preferred", "nodes": "1"}
    assert told["gpus"] == [{"index": 1, "bus_id": "0000:10:00.0", "uuid": uuid(1), "numa_node": 1, "source": "sysfs"}]


def test_no_gpu_is_one_line(box: Box) -> None:
    put(box.folder / "root", {"proc/driver/nvidia/gpus/none": ""})
    for address in ("0000:00:00.0", "0000:10:00.0"):
        (box.folder / "root/proc/driver/nvidia/gpus" / address / "information").unlink()
        (box.folder / "root/proc/driver/nvidia/gpus" / address).rmdir()
    done = box.run("--", "echo", "started")
    assert (done.stdout, done.stderr, done.returncode) == ("started\n", NO_GPU, 0)


# -- F17, F19: what the machine or a sandbox does not give -------------------------------------------------------------

JOB = ("sh", "-c", 'echo "a b"; exit 7')
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
    sys.exit("this kernel takes no filter")
os.execvp(sys.argv[1], sys.argv[1:])
"""
SANDBOX = (sys.executable, "-c", FILTER)
# The real one prints two lines and does not run the command.
REFUSED_NUMACTL = f"""exec {sys.executable} -c '
import ctypes, os, sys
call = {{"x86_64": 238, "aarch64": 237}}[os.uname().machine]
if ctypes.CDLL(None).syscall(ctypes.c_long(call), ctypes.c_long(0), None, ctypes.c_long(0)):
    sys.exit("set_mempolicy: Operation not permitted\\nsetting preferred node: Operation not permitted")
words = sys.argv[1:]
os.execvp(words[words.index("--") + 1], words[words.index("--") + 1:])
' "$@"
"""


def test_f17_an_unknown_node_is_one_line_and_the_command_runs(box: Box) -> None:
    everything = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    for address in ("0000:00:00.0", "0000:10:00.0"):
        files = {"numa_node": "-1", "local_cpulist": f"{everything},4095"}
        put(box.folder / "root/sys/bus/pci/devices", {f"{address}/{name}": text for name, text in files.items()})
    put(box.folder / "root/sys/devices/system/node/node0", {"cpulist": "4095"})
    done = box.run("--gpu", "1", "--", *JOB)
    assert (done.stdout, done.returncode, done.stderr.count("\n")) == ("a b\n", 7, 1)
    assert "NUMA node not known" in done.stderr and box.said() == []


def _f19(box: Box, wrap: tuple[str, ...], reason: str) -> None:
    line = f"gpu-run: memory is not bound: {reason}\n"
    done = box.run("--gpu", "1", "--", *JOB, wrap=wrap)
    assert (done.stdout, done.returncode, done.stderr) == ("a b\n", 7, line)
    assert box.run("--gpu", "1", "--", *AFFINITY, wrap=wrap).stdout == f"[{box.last}]\n"
    strict = box.run("--gpu", "1", "--strict", "--", *JOB, wrap=wrap)
    assert (strict.stdout, strict.returncode) == ("", 1)
    assert strict.stderr == f"{line}gpu-run: not started, since --strict is set\n"


def test_f19_a_sandbox_that_refuses_memory_policies(box: Box) -> None:
    stand_in(box.folder / "tools", "numactl", REFUSED_NUMACTL)
    assert box.run("--gpu", "1", "--", *JOB).stderr == ""
    _f19(box, SANDBOX, "set_mempolicy: operation not permitted (EPERM)")


def test_f19_numactl_is_missing(box: Box) -> None:
    (box.folder / "tools" / "numactl").unlink()
    for name in ("sh", "env"):
        (box.folder / "tools" / name).symlink_to(f"/bin/{name}")
    box.bare = True
    _f19(box, (), "numactl not found")


def test_f19_numactl_that_fails_says_why(box: Box) -> None:
    stand_in(box.folder / "tools", "numactl", "echo first >&2; echo broken library >&2; exit 127")
    assert box.run("--gpu", "1", "--", *JOB).stderr == "gpu-run: memory is not bound: numactl: broken library\n"

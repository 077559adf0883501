# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU facts when things hang (F23), the same facts from each source, and the module as it is documented."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _collect, _policy
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _child, _stuck

from .conftest import Machine
from .gpu_recording import Recording

MODULE = Path(__file__).resolve().parents[3] / "plugins" / "modules" / "gpu_facts.py"
FREEZER = Path("/sys/fs/cgroup/freezer")
LIMIT = 1.5
BACK = LIMIT + _child.GRACE + 8.0
HOUR = 3600 + os.getpid()  # a number that no other sleep has


def sleepers() -> list[int]:
    """Return what is left of the stand-in tool's family."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", str(HOUR).encode()]:
            found.append(int(place.parent.name))
    return found


@pytest.fixture
def h200(machine: Machine, recording: Recording) -> Machine:
    """Return the recorded host, with the tool and without a library."""
    machine.plug([{"way": "pci0000:00/0000:00:06.0", "local_cpulist": "0-15", "current_link_speed": "32.0 GT/s PCIe"}])
    machine.nodes([{"number": 0, "cpus": "0-15", "kib": 131961788, "distances": "10"}])
    machine.put({"/proc/driver/nvidia/version": recording.text("proc-driver-nvidia-version.txt"), "/dev/nvidia0": ""})
    information = "/proc/driver/nvidia/gpus/0000:00:06.0/information"
    machine.put({information: recording.text("proc-driver-gpu-information.txt"), "/dev/kmsg": ""})
    machine.smi(recording.smi())
    return machine


@pytest.fixture(params=["new", "old"])
def by_nvml(
    h200: Machine,
    recording: Recording,
    library: Path,
    interpreters: Callable[[str], Path],
    request: pytest.FixtureRequest,
) -> Machine:
    """Return the recorded host with the library as well, asked through either pynvml package."""
    h200.library, h200.python = library, interpreters(request.param)
    h200.nvml(recording.nvml())
    return h200


def figures(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the one GPU that every source gives alike."""
    (gpu,) = facts["gpus"]
    own = {"sources", "reasons"}
    flat = {name: value for name, value in gpu.items() if name not in own and not isinstance(value, dict)}
    for name, group in gpu.items():
        if isinstance(group, dict) and name not in own:
            flat.update({f"{name}.{key}": value for key, value in group.items()})
    for name in ("memory.api", "memory.free"):
        flat.pop(name)
    return flat


def test_each_source_gives_the_same_figures(by_nvml: Machine) -> None:
    through_library = by_nvml.gather()
    assert by_nvml.calls() == []
    by_nvml.nvml({"nvmlInit.rc": 999})
    through_tool = by_nvml.gather()
    assert (through_library["gathered_from"]["nvml"]["state"], through_library["state"]) == ("ok", "ok")
    assert (through_tool["gathered_from"]["nvidia_smi"]["state"], through_tool["state"]) == ("ok", "ok")
    ours, theirs = figures(through_library), figures(through_tool)
    if through_library["gpus"][0]["memory"]["api"] == "v1":
        for name in ("memory.used", "memory.reserved", "memory.used_includes_reserved"):
            del ours[name], theirs[name]
    assert ours == theirs
    by_nvml.smi(None)
    alone = figures(by_nvml.gather())
    told = ("name", "uuid", "bus_id", "minor_number", "pci_id", "numa_node", "local_cpus", "pcie.generation")
    assert {name: alone[name] for name in told} == {name: ours[name] for name in told}


def test_the_recorded_host(h200: Machine) -> None:
    facts = h200.gather()
    (gpu,) = facts["gpus"]
    assert facts["driver"] == {"loaded": "580.159.04", "kind": "open", "library": None, "cuda": "13.0"}
    assert (gpu["name"], gpu["architecture"], gpu["compute_capability"]) == ("NVIDIA H200", "Hopper", "9.0")
    assert gpu["memory"]["total"] == 143771 * 1024 * 1024 and gpu["memory"]["reserved"] == 616 * 1024 * 1024
    assert (gpu["power"], gpu["temperature"]) == ({"draw": 130.37, "limit": 700.0}, {"gpu": 39, "memory": 38})
    assert (gpu["numa_node"], gpu["local_cpus"], gpu["busy"], gpu["xids"]) == (0, "0-15", False, [])
    assert gpu["retired_pages"]["single_bit"] is None
    assert gpu["reasons"]["retired_pages.single_bit"] == "not available"


# What cannot change on a card, or not while nobody touches it.
STABLE = ("name", "architecture", "compute_capability", "pcie", "mig", "row_remap", "persistence", "compute_mode")


def test_the_recorded_result_is_what_the_recorded_words_give(by_nvml: Machine, recording: Recording) -> None:
    """The module's own result on the real host, kept whole, against what the stand-ins of that host lead to."""
    kept = json.loads(recording.text("gpu_facts.json"))
    facts = by_nvml.gather()
    assert set(kept) <= set(facts) and set(kept["gpus"][0]) <= set(facts["gpus"][0])
    assert (kept["state"], kept["visible_count"], kept["driver"]["loaded"]) == ("ok", 1, facts["driver"]["loaded"])
    card, real = facts["gpus"][0], kept["gpus"][0]
    assert {name: card[name] for name in STABLE} == {name: real[name] for name in STABLE}
    assert card["memory"]["total"] == real["memory"]["total"] and card["numa_node"] == real["numa_node"]


def test_a_healthy_host_is_left_as_it_was(by_nvml: Machine) -> None:
    def tree() -> list[tuple[str, bytes]]:
        return [(str(path), path.read_bytes()) for path in sorted(by_nvml.root.rglob("*")) if path.is_file()]

    before = tree()
    assert by_nvml.gather()["duration"] < LIMIT
    assert tree() == before


def test_a_missing_preload_changes_nothing(by_nvml: Machine) -> None:
    plain = figures(by_nvml.gather())
    by_nvml.environment = {"LD_PRELOAD": "/nonexistent/libjemalloc.so.2"}
    assert figures(by_nvml.gather()) == plain
    by_nvml.nvml({"nvmlInit.rc": 999})
    assert by_nvml.gather()["state"] == "ok"


@pytest.mark.parametrize("command", ["-q -x", "query", "nvlink --status"])
def test_a_tool_that_never_returns_is_ended_with_its_child(command: str, h200: Machine, recording: Recording) -> None:
    h200.smi({**recording.smi(), command: {"hang": HOUR}})
    began = time.monotonic()
    facts = h200.gather(LIMIT)
    assert time.monotonic() - began < BACK
    assert facts["state"] == "timeout" and "nvidia-smi " in facts["detail"] and "did not return" in facts["detail"]
    assert facts["duration"] < LIMIT + _child.GRACE + 5
    assert (facts["left_behind"], sleepers()) == ([], [])
    assert facts["gpus"][0]["numa_node"] == 0
    assert facts["visible_count"] == (0 if command == "-q -x" else 1)


def test_a_library_call_that_never_returns_is_ended(by_nvml: Machine, recording: Recording) -> None:
    by_nvml.nvml({**recording.nvml(), "nvmlDeviceGetMemoryInfo.hang": HOUR, "nvmlDeviceGetMemoryInfo_v2.hang": HOUR})
    began = time.monotonic()
    facts = by_nvml.gather(LIMIT)
    assert time.monotonic() - began < BACK
    assert (facts["state"], facts["detail"]) == ("timeout", "NVML: a call about GPU 0 did not return")
    assert (facts["count"], facts["visible_count"], facts["gpus"][0]["name"]) == (1, 0, "NVIDIA H200")
    assert (facts["left_behind"], by_nvml.calls()) == ([], [])


def test_a_start_that_never_returns_is_ended(by_nvml: Machine) -> None:
    by_nvml.nvml({"nvmlInit.hang": HOUR})
    facts = by_nvml.gather(LIMIT)
    assert (facts["state"], facts["detail"]) == ("timeout", "NVML: a call did not return")


def test_one_gpu_that_hangs_does_not_hide_those_before_it(by_nvml: Machine, recording: Recording) -> None:
    by_nvml.plug([{"way": "pci0000:00/0000:00:07.0"}])
    second = {"count": 2, "1.bus_id": "00000000:00:07.0", "1.nvmlDeviceGetName.hang": HOUR}
    by_nvml.nvml({**recording.nvml(), **second})
    facts = by_nvml.gather(LIMIT)
    assert (facts["state"], facts["detail"]) == ("timeout", "NVML: a call about GPU 1 did not return")
    assert [gpu["visible"] for gpu in facts["gpus"]] == [True, False]
    assert (facts["missing"], facts["driver"]["cuda"]) == (["0000:00:07.0"], "13.0")
    assert facts["gpus"][0]["memory"]["total"] == 143771 * 1024 * 1024


def test_a_kernel_file_that_never_returns_costs_only_its_share(h200: Machine) -> None:
    place = h200.root / "proc/driver/nvidia/version"
    place.unlink()
    os.mkfifo(place)
    facts = h200.gather(4 * LIMIT)
    assert (facts["state"], h200.calls()) == ("timeout", [])
    assert facts["detail"] == "sysfs and /proc/driver/nvidia: reading did not end"
    assert facts["duration"] < LIMIT + _child.GRACE + 5


@pytest.fixture
def freezer() -> Iterator[Path]:
    """Return a folder of the version 1 freezer, in which even KILL ends nothing; thaw and remove it afterwards."""
    folder = FREEZER / f"gpu-fleet-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"a process that KILL does not end needs the version 1 freezer: {FREEZER}: {error.strerror}")
    yield folder
    thaw(folder)
    folder.rmdir()


def thaw(folder: Path) -> None:
    """Let the processes go on, to their end."""
    (folder / "freezer.state").write_text("THAWED")
    until = time.monotonic() + 5
    while (folder / "cgroup.procs").read_text() and time.monotonic() < until:
        time.sleep(0.01)


def test_a_tool_that_cannot_be_ended_is_left_alone_and_not_joined(
    freezer: Path, h200: Machine, recording: Recording
) -> None:
    h200.smi({"*": {"freeze": str(freezer)}})
    version, runs = h200.root / "proc/driver/nvidia/version", []
    for _run in range(3):
        began = time.monotonic()
        runs.append(h200.gather(LIMIT))
        assert time.monotonic() - began < BACK
        version.unlink()
        os.mkfifo(version)  # the driver's files hang as its calls do
    standing = [int(word) for word in (freezer / "cgroup.procs").read_text().split()]
    assert len(standing) == 1 and h200.calls() == ["-q -x"]
    assert [(facts["state"], facts["left_behind"]) for facts in runs] == 3 * [("timeout", standing)]
    assert f"process {standing[0]} cannot be ended" in runs[0]["detail"]
    assert "of an earlier run still hangs" in runs[1]["detail"] and "nvidia-smi -q -x" in runs[1]["detail"]
    assert runs[2]["duration"] < LIMIT and runs[2]["gpus"][0]["memory"]["used"] is None
    assert (runs[2]["gpus"][0]["numa_node"], runs[2]["gpus"][0]["local_cpus"]) == (0, "0-15")
    version.unlink()
    thaw(freezer)
    h200.smi(recording.smi())
    assert (h200.gather()["state"], (h200.root / _stuck.FOLDER.lstrip("/")).exists()) == ("ok", False)


def documented() -> dict[str, Any]:
    """Return the documentation of the facts."""
    found = re.search(r'RETURN = r"""(.*?)"""', MODULE.read_text(), re.DOTALL)
    assert found is not None
    facts: dict[str, Any] = yaml.safe_load(found[1])["ansible_facts"]["contains"]["gpu_fleet_gpu"]
    return facts


TYPES = {"str": str, "int": int, "float": (int, float), "bool": bool, "list": list, "dict": dict}


def differences(document: dict[str, Any], value: Any, name: str) -> Iterator[str]:
    """Yield what is documented otherwise than it is."""
    if value is None:
        if "null" not in json.dumps(document["description"]).lower():
            yield f"{name}: is null, and nothing says when"
        return
    if not isinstance(value, TYPES[document["type"]]):
        yield f"{name}: is {type(value).__name__}, documented as {document['type']}"
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, dict) and "contains" in document:
            yield from (f"{name}.{key}: one-sided" for key in set(document["contains"]) ^ set(one))
            for key in set(document["contains"]) & set(one):
                yield from differences(document["contains"][key], one[key], f"{name}.{key}")


def test_every_key_is_documented_with_its_type_and_null(h200: Machine, recording: Recording) -> None:
    h200.plug([{"way": "pci0000:00/0000:00:07.0", "vendor": "0x1002", "driver": None}])
    h200.plug([{"way": "pci0000:00/0000:00:08.0", "class": "0x020000", "net/eth0/address": ""}])
    h200.put({"/dev/kmsg": "4,1,5000000,-;NVRM: Xid (PCI:0000:00:06): 31, pid=77\n"})
    full = h200.gather()
    assert full["gpus"][0]["near"] and full["gpus"][0]["xids"] and full["amd_gpus"]
    assert list(differences(documented(), full, "facts")) == []
    h200.smi({"-q -x": {"out": recording.text("nvidia-smi-q-x.xml"), "rc": 0}, "*": {"rc": 1}})
    h200.put({"/proc/driver/nvidia/version": ""})
    assert list(differences(documented(), h200.gather(), "facts")) == []
    h200.smi(None)
    assert list(differences(documented(), h200.gather(), "facts")) == []


def module(**arguments: Any) -> dict[str, Any]:
    """Run the module file as Ansible does."""
    path = str(Path(sys.modules["ansible_collections"].__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, str(MODULE)],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer.get("failed", False) == (done.returncode != 0)
    return answer


def test_the_module_returns_facts_and_nothing_else() -> None:
    for check_mode in (False, True):
        answer = module(_ansible_check_mode=check_mode)
        assert set(answer) == {"ansible_facts", "invocation"}
        facts = answer["ansible_facts"]["gpu_fleet_gpu"]
        assert list(differences(documented(), facts, "facts")) == []
        assert abs(facts["gathered_at"] - time.time()) < 60


PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - gpu_fleet.node.gpu_facts:
        timeout: 1.5
    - ansible.builtin.debug:
        msg: "the state is {{ ansible_facts['gpu_fleet_gpu'].state }}, and on it goes"
"""


def test_a_play_goes_on_when_the_tool_hangs(machine: Machine) -> None:
    machine.smi({"*": {"hang": HOUR}})
    play = machine.folder / "play.yml"
    play.write_text(PLAY)
    collections = str(Path(sys.modules["ansible_collections"].__path__[0]).parent)
    environment = {**machine.variables(), "ANSIBLE_COLLECTIONS_PATH": collections, "ANSIBLE_HOME": str(machine.folder)}
    command = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", str(play)]
    command += ["-e", f"ansible_python_interpreter={sys.executable}"]
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "the state is timeout, and on it goes" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0 and time.monotonic() - began < 20
    assert sleepers() == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"timeout": 0}, "timeout 0.0: is not above 0 and at most 600 seconds"),
        ({"timeout": 601}, "timeout 601.0: is not above 0 and at most 600 seconds"),
        ({"expected_count": -1}, "expected_count -1: is negative, a number of GPUs was expected"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    answer = module(**arguments)
    assert answer["failed"] and answer["msg"] == sentence


def test_nothing_is_asked_with_options_that_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(TuningError):
        _collect.gather(Host(str(tmp_path), live=True), -1.0)


FILTER = """
import ctypes, json, struct
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _policy
number = _policy.SET_MEMPOLICY[__import__("os").uname().machine]
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("rules", ctypes.c_void_p)]
program = Program(len(rules), ctypes.addressof(code))
library = ctypes.CDLL(None)
if library.prctl(38, 1, 0, 0, 0) or library.prctl(22, 2, ctypes.byref(program), 0, 0):
    raise SystemExit("seccomp filters are not to be had here")
print(json.dumps(_policy.allowed()))
"""


def test_a_memory_policy_that_is_refused_is_told(machine: Machine) -> None:
    if os.uname().machine not in _policy.SET_MEMPOLICY:
        pytest.skip(f"the number of the call is not known on {os.uname().machine}")
    done = subprocess.run(
        [sys.executable, "-c", FILTER], env=machine.variables(), capture_output=True, text=True, check=False
    )
    if "not to be had" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert json.loads(done.stdout) == [False, "set_mempolicy: operation not permitted (EPERM)"]


def test_a_memory_policy_on_an_unknown_machine_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_policy, "SET_MEMPOLICY", {})
    assert _policy.allowed()[0] is None

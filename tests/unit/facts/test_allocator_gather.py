# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""All sources under one deadline, on this very machine, as root and not; every key is documented."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import (
    _advisories,
    _arguments,
    _gather,
    _left,
    _oom,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Options, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe import _process
from ansible_collections.gpu_fleet.node.plugins.module_utils._probe._kernel_log import Record
from ansible_collections.gpu_fleet.node.plugins.modules import allocator_facts

SECTIONS = ("host", "cgroup", "oom", "limits", "malloc", "torch")
MISSING = "/nonexistent/libjemalloc.so.2"
VERSION = "__version__ = '2.6.0+cu124'\ncuda = '12.4'\nhip = None\n"


@pytest.fixture(name="options")
def _options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Ask for something of each kind: a service of a stand-in manager, this process, a torch that is not imported."""
    manager = tmp_path / "bin" / "systemctl"
    torch = tmp_path / "site" / "torch"
    for folder in (manager.parent, torch):
        folder.mkdir(parents=True)
    unit = f"Id=x.service\nLoadState=loaded\nMainPID={os.getpid()}\nLimitNOFILE=77\nLimitNOFILESoft=7\n"
    manager.write_text(f"#!/bin/sh\ncat <<END\n{unit}END\n", encoding="utf-8")
    manager.chmod(0o755)
    (torch / "__init__.py").write_text("raise SystemExit('torch was imported')\n", encoding="utf-8")
    (torch / "version.py").write_text(VERSION, encoding="utf-8")
    monkeypatch.setenv("PATH", f"{manager.parent}:{os.environ['PATH']}")
    for folder in (tmp_path, *tmp_path.parents[:2], manager.parent, torch.parent, torch):
        folder.chmod(0o755)  # for the run as an ordinary user
    return Options(
        slices=("gpu-train.slice", "no slice"),
        services=("x",),
        processes=(str(os.getpid()), "no-such-process"),
        users=("root",),
        interpreters=(sys.executable, "/nonexistent/python"),
        environment={"PYTHONPATH": str(torch.parent), "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )


def test_this_machine_is_gathered_whole_and_fast(options: Options) -> None:
    facts = _gather.gather(Host(), options, 8.0)
    assert {name: told["state"] for name, told in facts["gathered_from"].items()} == dict.fromkeys(SECTIONS, "ok")
    assert facts["duration"] < 10  # 0.2 s on an idle machine
    assert (facts["left_behind"], facts["left_behind_reason"]) == ([], None)
    assert facts["host"]["memory"]["total"] > 0
    assert facts["torch"][0]["version"] == "2.6.0+cu124"
    assert facts["limits"]["services"][0]["restart_needed"] is True
    json.dumps(facts)


def test_what_the_system_says_is_what_the_facts_say() -> None:
    facts = _gather.gather(Host(), Options(), 8.0)
    status = os.statvfs("/dev/shm")
    assert facts["host"]["shm"]["size"] == status.f_blocks * status.f_frsize
    assert facts["host"]["page_size"]["bytes"] * os.sysconf("SC_PHYS_PAGES") == facts["host"]["memory"]["total"]
    assert facts["malloc"]["glibc"]["version"] == (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[-1]


def as_nobody(work: Callable[[], Any]) -> Any:
    """Run something as an ordinary user, in a child, and return its answer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                nobody = pwd.getpwnam("nobody")
                os.setgroups([])
                os.setgid(nobody.pw_gid)
                os.setuid(nobody.pw_uid)
            with os.fdopen(writing, "w") as stream:
                json.dump(work(), stream)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        answer = json.load(stream)
    os.waitpid(pid, 0)
    return answer


def test_an_ordinary_user_gets_less_and_the_reasons(options: Options) -> None:
    facts = as_nobody(lambda: _gather.gather(Host(), Options(processes=("1",), services=options.services), 8.0))
    assert {name: told["state"] for name, told in facts["gathered_from"].items()} == dict.fromkeys(SECTIONS, "ok")
    row = facts["malloc"]["processes"][0]
    assert row["malloc"] is None and "Permission denied" in row["reason"]
    assert (facts["oom"]["kills"] is None) == (facts["oom"]["log_reason"] is not None)
    assert facts["host"]["memory"]["total"] > 0


def test_f26_a_missing_preload_changes_no_other_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Options(interpreters=(sys.executable,))
    without = _gather.gather(Host(), wanted, 8.0)
    monkeypatch.setenv("LD_PRELOAD", MISSING)
    facts = _gather.gather(Host(), wanted, 8.0)
    assert [row["path"] for row in facts["malloc"]["preloads"]][:1] == [MISSING]
    assert "preload-missing" in [row["name"] for row in facts["advisories"]]
    for section, key in (("host", "thp"), ("host", "page_size"), ("cgroup", "layout"), ("malloc", "glibc")):
        assert facts[section][key] == without[section][key]
    assert facts["torch"] == without["torch"]
    assert facts["limits"] == without["limits"]


# -- the deadline ----------------------------------------------------------------------------------------------------


def hang(_scene: Scene) -> Any:
    while True:
        time.sleep(1)


def fail(_scene: Scene) -> Any:
    raise ValueError("the kernel said something new")


def answer(_scene: Scene) -> Any:
    return None


def with_sources(monkeypatch: pytest.MonkeyPatch, **sources: Any) -> None:
    monkeypatch.setattr(_gather, "SOURCES", tuple((name, sources.get(name, answer)) for name in SECTIONS))


@pytest.mark.parametrize("names", [("host",), ("torch",), ("host", "malloc", "torch"), SECTIONS])
def test_a_source_that_hangs_costs_only_itself(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    with_sources(monkeypatch, **dict.fromkeys(names, hang))
    began = time.monotonic()
    facts = _gather.gather(Host(), Options(), 1.0)
    assert time.monotonic() - began < 2.5
    states = {name: told["state"] for name, told in facts["gathered_from"].items()}
    assert states == {name: "timeout" if name in names else "ok" for name in SECTIONS}
    assert all(facts[name] is None for name in names)
    assert facts["gathered_from"][names[0]]["detail"].startswith(f"{names[0]}: no answer within")
    assert facts["left_behind"] == []


def test_a_source_that_fails_is_a_result_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with_sources(monkeypatch, cgroup=fail)
    facts = _gather.gather(Host(), Options(), 2.0)
    told = facts["gathered_from"]["cgroup"]
    assert (told["state"], facts["cgroup"]) == ("error", None)
    assert told["detail"] == "cgroup: the source ended early (ValueError: the kernel said something new)"


def test_what_is_no_text_does_not_reach_ansible(monkeypatch: pytest.MonkeyPatch) -> None:
    with_sources(monkeypatch, oom=lambda _scene: {os.fsdecode(b"\xfe"): [os.fsdecode(b"/\xff"), "\U0001f600", 1]})
    facts = _gather.gather(Host(), Options(), 2.0)
    assert facts["oom"] == {"?": ["/?", "\U0001f600", 1]}
    json.dumps(facts, ensure_ascii=False).encode("utf-8")


@pytest.fixture(name="stuck")
def _stuck() -> Iterator[_process.Process]:
    """Give a process that stands for one of an earlier run that cannot be ended."""
    with subprocess.Popen(["sleep", "60"]) as child:
        found = _process.look_up(child.pid)
        assert found is not None
        yield found
        child.kill()


def test_a_source_is_not_asked_while_a_child_of_an_earlier_run_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: _process.Process
) -> None:
    with_sources(monkeypatch, limits=fail)
    host = Host(str(tmp_path))
    assert _left.remember(host, [("limits", stuck.pid, stuck.start), ("gone", stuck.pid, stuck.start - 1)]) is None
    facts = _gather.gather(host, Options(), 2.0)
    told = facts["gathered_from"]["limits"]
    assert (told["state"], told["detail"]) == ("timeout", f"process {stuck.pid} of an earlier run still hangs")
    assert facts["left_behind"] == [stuck.pid]
    assert (tmp_path / "run/gpu-fleet/stuck-allocator-facts.json").stat().st_mode & 0o777 == 0o600


def test_the_list_goes_with_its_last_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_sources(monkeypatch)
    host = Host(str(tmp_path))
    with subprocess.Popen(["sleep", "60"]) as child:
        found = _process.look_up(child.pid)
        assert found is not None and _left.remember(host, [("limits", found.pid, found.start)]) is None
        child.kill()
    facts = _gather.gather(host, Options(), 2.0)
    assert facts["gathered_from"]["limits"]["state"] == "ok" and facts["left_behind"] == []
    assert not (tmp_path / "run/gpu-fleet").exists()


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"pid": "x"}]', "null"])
def test_a_list_that_makes_no_sense_stops_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run/gpu-fleet/stuck-allocator-facts.json"
    path.parent.mkdir(parents=True)
    path.write_text(content, encoding="utf-8")
    assert _left.standing(Host(str(tmp_path))) == {}
    assert _left.remember(Host(str(tmp_path)), []) is None


def test_what_cannot_be_noted_is_said(tmp_path: Path, stuck: _process.Process) -> None:
    (tmp_path / "run").write_text("a file", encoding="utf-8")
    problem = _left.remember(Host(str(tmp_path)), [("limits", stuck.pid, stuck.start)])
    assert problem is not None and problem.startswith("/run/gpu-fleet/stuck-allocator-facts.json: cannot be written")


# -- the documentation -------------------------------------------------------------------------------------------------


def undocumented(value: Any, described: dict[str, Any], way: str) -> Iterator[str]:
    """Yield each key that is returned and not described, and each that is described and not returned."""
    if isinstance(value, list):
        for row in value:
            yield from undocumented(row, described, way)
    elif isinstance(value, dict) and "contains" in described:
        for name in sorted(set(value) ^ set(described["contains"])):
            yield f"{way}.{name}"
        for name in sorted(set(value) & set(described["contains"])):
            yield from undocumented(value[name], described["contains"][name], f"{way}.{name}")


def described() -> dict[str, Any]:
    documented = yaml.safe_load(allocator_facts.RETURN)["ansible_facts"]["contains"]["gpu_fleet_allocator"]
    assert isinstance(documented, dict)
    return documented


def test_every_key_is_documented_and_every_documented_key_is_there(options: Options) -> None:
    facts = _gather.gather(Host(), options, 8.0)
    line = "Out of memory: Killed process 7 (a) total-vm:1kB, anon-rss:1kB, file-rss:1kB, shmem-rss:1kB, UID:0"
    facts["oom"]["kills"] = _oom.kills([Record(line, 1.0)])
    facts["advisories"] = facts["advisories"][:1]
    assert list(undocumented(facts, described(), "facts")) == []


def test_what_an_h200_host_gave_is_documented_and_judged() -> None:
    path = Path(__file__).parent / "cases" / "allocator_h200_torch-2.11.0.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    assert list(undocumented(facts, described(), "facts")) == []
    again = _advisories.match(facts, "6.18.44")
    assert again == {name: facts[name] for name in ("advisories", "undecided_advisories")}
    row = facts["torch"][0]  # what torch itself said there, once it was imported: 2.11.0+cu130, 13.0, (2, 28, 9), 91900
    assert (row["version"], row["cuda"], row["nccl"]) == ("2.11.0+cu130", "13.0", "2.28.9")
    assert row["cudnn"].startswith("9.19.0")


def test_a_key_without_documentation_is_noticed() -> None:
    facts = {"host": {"new": 1}, "torch": [{"new": None}]}
    found = list(undocumented(facts, described(), "facts"))
    assert "facts.host.new" in found and "facts.torch.new" in found and "facts.cgroup" in found


def test_the_options_are_those_of_the_documentation() -> None:
    documented = yaml.safe_load(allocator_facts.DOCUMENTATION)["options"]
    spec = _arguments.spec()
    assert {name: option.get("type") for name, option in documented.items()} == {
        name: option["type"] for name, option in spec.items()
    }
    parameters = {name: option["default"] for name, option in spec.items()}
    assert _arguments.options({**parameters, "environment": {"OMP_NUM_THREADS": 4}}) == Options(
        environment={"OMP_NUM_THREADS": "4"}
    )

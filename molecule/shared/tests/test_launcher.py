# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu-run on a host with several NUMA nodes: what the command finds from inside, with stand-ins for the GPUs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from testinfra.host import Host

UUID = "GPU-{0}{0}{0}{0}{0}{0}{0}{0}-0000-0000-0000-000000000000"
# In a mount namespace of its own: one GPU on each node, and a tool that knows their UUIDs (/run takes no programs).
STAGE = """\
set -e
mkdir -p /opt/lab/devices /opt/lab/bin
: >/opt/lab/answer
for place in /sys/devices/system/node/node[0-9]*; do
  node=${place##*node}
  gpu=/opt/lab/devices/0000:${node}b:00.0
  mkdir -p "$gpu"
  echo 0x030200 >"$gpu/class"
  echo 0x10de >"$gpu/vendor"
  echo "${NODE:-$node}" >"$gpu/numa_node"
  cat "$place/cpulist" >"$gpu/local_cpulist"
  [ -z "${NODE:-}" ] || cat /sys/devices/system/cpu/online >"$gpu/local_cpulist"
  n=$node$node$node$node
  echo "00000000:${node}B:00.0, GPU-$n$n-0000-0000-0000-000000000000" >>/opt/lab/answer
done
printf '#!/bin/sh\\ncat /opt/lab/answer\\n' >/opt/lab/bin/nvidia-smi
chmod 755 /opt/lab/bin/nvidia-smi
mount --bind /opt/lab/devices /sys/bus/pci/devices
PATH=/opt/lab/bin:$PATH
export PATH
exec "$@"
"""
INSIDE = "grep -E '^(Cpus|Mems)_allowed_list' /proc/self/status; numactl --show; env; cat /proc/self/cgroup"


@pytest.fixture(scope="module", autouse=True)
def _only_where_asked(variables: dict[str, Any]) -> None:
    if not variables.get("lab_launcher"):
        pytest.skip("gpu-run: this host has one NUMA node that it shares, so there is nothing to bind to")


@pytest.fixture(scope="module")
def stage(host: Host) -> str:
    """Return the words that start a command where there are GPUs."""
    host.check_output(f"cat >/opt/lab-stage <<'END'\n{STAGE}END\nchmod 755 /opt/lab-stage")
    return "unshare --mount sh /opt/lab-stage"


def inside(host: Host, words: str) -> dict[str, str]:
    """Run a command that tells how it was started; return its lines by their first word."""
    done = host.run(f'{words} sh -c "{INSIDE}"')
    assert done.rc == 0, done.stderr
    pairs = (line.replace(":", "=", 1).split("=", 1) for line in done.stdout.splitlines() if ":" in line or "=" in line)
    return {name.strip(): value.strip() for name, value in pairs} | {"stderr": done.stderr, "all": done.stdout}


def test_one_gpu_has_its_node(host: Host, stage: str) -> None:
    found = inside(host, f"{stage} gpu-run --slice '' --gpu 1 --")
    assert (found["Cpus_allowed_list"], found["policy"], found["preferred node"]) == ("1", "preferred", "1")
    assert found["CUDA_VISIBLE_DEVICES"] == UUID.format(1) and found["stderr"] == ""


def test_f26_a_library_by_its_name_is_loaded_from_where_the_host_has_it(host: Host, variables: dict[str, Any]) -> None:
    name = variables["tune_numa_environment"].get("LD_PRELOAD")
    if name is None:
        pytest.skip("gpu-run: this host's defaults preload nothing")
    told = host.check_output("gpu-run --slice '' -- sh -c 'echo $LD_PRELOAD; cat /proc/self/maps'").splitlines()
    assert told[0].startswith("/") and told[0].endswith(f"/{name}") and host.file(told[0]).exists
    assert any(host.check_output(f"readlink -f {told[0]}") in line for line in told[1:])


def test_strict_binds_the_memory(host: Host, stage: str) -> None:
    found = inside(host, f"{stage} gpu-run --slice '' --gpu 1 --strict --")
    assert (found["Cpus_allowed_list"], found["policy"], found["membind"]) == ("1", "bind", "1")


def test_the_rank_s_gpu_under_a_launcher(host: Host, stage: str) -> None:
    found = inside(host, f"env LOCAL_RANK=1 {stage} gpu-run --slice '' --")
    assert found["Cpus_allowed_list"] == "1" and "CUDA_VISIBLE_DEVICES" not in found


def test_f17_an_unknown_node_binds_nothing(host: Host, stage: str) -> None:
    found = inside(host, f"env NODE=-1 {stage} gpu-run --slice '' --gpu 0 --")
    assert found["Cpus_allowed_list"] != "0" and found["policy"] == "default"
    assert found["stderr"].count("\n") == 1
    stopped = host.run(f"env NODE=-1 {stage} gpu-run --slice '' --gpu 0 --strict -- echo started")
    assert stopped.rc == 1 and stopped.stdout == ""


def test_a_cpuset_cuts_what_is_near(host: Host, stage: str, variables: dict[str, Any]) -> None:
    if variables["lab_launcher"] != "v2":
        return  # AllowedCPUs acts on cgroup v2 only
    found = inside(host, f"systemd-run --quiet --scope --property=AllowedCPUs=0 {stage} gpu-run --slice '' --gpu 1 --")
    assert found["Cpus_allowed_list"] == "0" and "no CPU near the GPU may be used" in found["stderr"]


def test_f19_a_sandbox_that_refuses_policies(host: Host, stage: str) -> None:
    sandbox = (
        "systemd-run --quiet --wait --pipe --property=SystemCallErrorNumber=EPERM "
        "'--property=SystemCallFilter=~set_mempolicy mbind get_mempolicy'"
    )
    job = "sh -c 'grep ^Cpus_allowed_list /proc/self/status; exit 7'"
    done = host.run(f"{sandbox} {stage} gpu-run --slice '' --gpu 1 -- {job}; echo status $?")
    assert done.stdout.split() == ["Cpus_allowed_list:", "1", "status", "7"] and "EPERM" in done.stderr
    strict = host.run(f"{sandbox} {stage} gpu-run --slice '' --gpu 1 --strict -- {job}; echo status $?")
    assert strict.stdout.split() == ["status", "1"]


def test_a_node_without_memory_lends_from_its_neighbour(host: Host, stage: str, variables: dict[str, Any]) -> None:
    plan = json.loads(host.check_output(f"{stage} gpu-run --gpu 2 --dry-run -- true")) if _memoryless(variables) else {}
    assert not plan or (plan["cpus"], plan["memory"]) == ("2", {"mode": "preferred", "nodes": "0"})
    assert not plan or "node 2: has no memory" in str(plan["obstacles"])


def _memoryless(variables: dict[str, Any]) -> bool:
    return "--memoryless" in variables["lab_up"]


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_a_job_is_in_the_slice_with_its_limits(host: Host, variables: dict[str, Any], user: str) -> None:
    """What the audit claims, seen from inside: control group, memory limit, limits of the login, affinity."""
    name = variables["tune_numa_slice"]
    paths = [path for path in variables["lab_groups"][name] if f"/{name}/memory." in f"/{path}"]
    limits = [variables["lab_groups"][name][path] for path in paths]
    files = " ".join(f"/sys/fs/cgroup/{path}" for path in paths)
    job = f"cat /proc/self/cgroup; cat {files}; ulimit -Sn; ulimit -Hn; env"
    told = host.run(f"su -s /bin/sh {user} -c 'gpu-run -- sh -c \"{job}\"'")
    assert told.rc == 0 and f"/{name}/gpu-run-" in told.stdout, told.stderr
    lines = told.stdout.splitlines()
    assert [line for line in limits if line not in lines] == [] and "NCCL_DEBUG=WARN" in lines
    assert [line for line in variables["lab_logins"][:2] if line not in lines] == []


def test_a_user_gets_nothing_else_by_the_rule(host: Host, variables: dict[str, Any]) -> None:
    name = variables["tune_numa_slice"]
    for command in ("id", "/usr/local/bin/gpu-run -- id", f"/usr/local/bin/gpu-run --enter={name} --pid=1", "sh -c id"):
        done = host.run(f"su -s /bin/sh nobody -c 'pkexec --disable-internal-agent {command}'")
        assert done.rc != 0 and "uid=0" not in done.stdout, command
    done = host.run("su -s /bin/sh nobody -c 'gpu-run --slice other.slice --strict -- id'")
    assert done.rc == 1 and done.stdout == "" and done.stderr.count("\n") == 1

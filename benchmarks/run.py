# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the tune playbook against the same settings through well-known modules, and both against a bare ping."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LAB = ROOT / "tests" / "lab"
ENVIRONMENT = ROOT / ".cache" / "benchmarks"
CONTAINER = "gpu-benchmark"
THP = {f"tune_thp_{name}": f"/sys/kernel/mm/transparent_hugepage/{name}" for name in ("enabled", "defrag")}
PLAYBOOKS = {"product": ROOT / "tune-gpu-nodes.yml", "peer": HERE / "peer.yml", "ping": HERE / "ping.yml"}
# With -vvv Ansible names each command and each file that it sends to a host.
REMOTE = re.compile(r"^<\S+> (?:SSH: EXEC|PUT) ", re.MULTILINE)
RATIOS = (("peer first", "product first"), ("peer second", "product second"), ("product second", "ping"))

LIMIT = ("domain", "type", "item", "value")
SHOWN = {"MemoryMax": "memory_max", "MemoryHigh": "memory_high", "TasksMax": "tasks_max"}

Values = dict[str, str]


@dataclass
class Cost:
    """What one kind of run cost, a figure a round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    remote: int = 0

    def medians(self) -> tuple[float, float, int]:
        """Return wall time, controller CPU and remote runs."""
        return statistics.median(self.wall), statistics.median(self.cpu), self.remote


def form(value: object) -> str:
    """Return a size or a number as systemctl shows it, rounded down to 64 KiB as the product does."""
    found = re.fullmatch(r"(\d+)([MG]?)", str(value))
    if found is None or not found[2]:
        return str(value)
    return str(int(found[1]) * {"M": 2**20, "G": 2**30}[found[2]] // 65536 * 65536)


class Bench:
    """One host with the settings wanted on it, and Ansible in an environment of its own."""

    def __init__(self, inventory: Path, settings: dict[str, Any]) -> None:
        """Read what the host has before anything is changed; a switch that the settings do not name stays as it is."""
        self.inventory, self.extra = inventory, []
        self.paths = {
            f"/proc/sys/{key.replace('.', '/')}": value for key, value in settings["tune_sysctl_values"].items()
        }
        self.original = self.read([*self.paths, *THP.values()])
        for name, path in THP.items():
            self.paths[path] = settings.setdefault(name, self.original[path])
        self.limits = [" ".join(row[key] for key in LIMIT) for row in settings["tune_limits_entries"]]
        self.slices = {row["name"]: row for row in settings["tune_slices_definitions"]}
        self.wanted = {path: " ".join(str(value).split()) for path, value in self.paths.items()}
        self.extra = ["-e", json.dumps({**settings, "bench_original": self.original})]

    def ansible(self, program: str, *words: str | Path) -> str:
        """Run an Ansible program and return what it printed; end with that when it fails."""
        command = [ENVIRONMENT / "bin" / program, "-i", self.inventory, *self.extra, *words]
        answer = subprocess.run([str(word) for word in command], check=False, text=True, capture_output=True, cwd=ROOT)
        if answer.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, words))} failed: {answer.stdout[-3000:]}{answer.stderr[-1000:]}")
        return answer.stdout

    def measure(self, name: str, cost: Cost) -> None:
        """Run a playbook once and add what it cost."""
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        self.ansible("ansible-playbook", PLAYBOOKS[name])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cost.wall.append(time.monotonic() - start)
        cost.cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def count(self, name: str, cost: Cost) -> None:
        """Run a playbook once, untimed, and count its remote runs."""
        cost.remote = len(REMOTE.findall(self.ansible("ansible-playbook", "-vvv", PLAYBOOKS[name])))

    def reset(self) -> None:
        """Put the host back to where both sides start from."""
        self.ansible("ansible-playbook", HERE / "reset.yml")

    def audit(self, name: str) -> None:
        """Require of the host itself that every setting is as wanted."""
        actual = self.read(list(self.wanted))
        if actual != self.wanted:
            raise SystemExit(f"{name}: {actual} was read, {self.wanted} was wanted")
        launcher = "/usr/local/bin/gpu-run" if name == "product" else "/usr/local/bin/gpu-numactl"
        script = [f"test -x {launcher}", "cat /etc/security/limits.d/*gpu*.conf"]
        script += [f"systemctl show {one} -p {','.join(SHOWN)}" for one in self.slices]
        told = self.ansible("ansible", "gpu_nodes", "-b", "-m", "shell", "-a", " && ".join(script))
        lines = {" ".join(line.split()) for line in told.splitlines()}
        shown = [f"{name}={form(row[key])}" for row in self.slices.values() for name, key in SHOWN.items()]
        missing = [line for line in (*self.limits, *shown) if line not in lines]
        if missing:
            raise SystemExit(f"{name}: {missing} was wanted, and this was read: {told}")

    def read(self, paths: list[str]) -> Values:
        """Ask the host itself for values."""
        lines = self.ansible(
            "ansible", "gpu_nodes", "-b", "-m", "command", "-a", f"grep -H '' {' '.join(paths)}"
        ).splitlines()
        pairs = (line.split(":", 1) for line in lines if line.startswith("/"))
        return {path: " ".join((re.findall(r"\[(.*)\]", value) or [value])[0].split()) for path, value in pairs}


def enter_environment() -> None:
    """Go on in an environment with the yardstick's modules, made once for each list of requirements."""
    wanted, stamp = (HERE / "requirements.txt").read_text(encoding="utf-8"), ENVIRONMENT / "requirements.txt"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip: list[str | Path] = [
            ENVIRONMENT / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        subprocess.run([*pip, "-r", HERE / "requirements.txt"], check=True)
        stamp.write_text(wanted, encoding="utf-8")
    link = ROOT / ".ansible" / "collections" / "ansible_collections" / "gpu_fleet" / "node"
    if not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("../../../..")
    if Path(sys.prefix) != ENVIRONMENT:
        settings = {"ANSIBLE_CONFIG": ROOT / "ansible.cfg", "LC_ALL": "C.UTF-8", "ANSIBLE_NOCOLOR": "1"}
        python = str(ENVIRONMENT / "bin" / "python")
        os.execve(python, [python, *sys.argv], {**os.environ, **{name: str(value) for name, value in settings.items()}})


@contextmanager
def container() -> Iterator[Path]:
    """Bring a container up for the time of the benchmark and yield its inventory."""
    tool: list[str | Path] = [sys.executable, LAB / "container.py"]
    try:
        subprocess.run([*tool, "up", CONTAINER, "--privileged"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([*tool, "wait", CONTAINER], check=True)
        yield ROOT / ".cache" / "lab" / "run" / CONTAINER / "inventory.yml"
    finally:
        subprocess.run([*tool, "down", CONTAINER], check=False, stdout=subprocess.DEVNULL)


def rounds(bench: Bench, number: int) -> dict[str, Cost]:
    """Take both sides through a first and a second run, in turns; round 0 counts remote runs and is not timed."""
    costs = {name: Cost() for name in ("product first", "product second", "peer first", "peer second", "ping")}
    for turn in range(number + 1):
        take = bench.measure if turn else bench.count
        for side in ("product", "peer")[:: 1 if turn % 2 else -1]:
            bench.reset()
            for run in ("first", "second"):
                take(side, costs[f"{side} {run}"])
                bench.audit(side)
        take("ping", costs["ping"])
        print(f"round {turn} of {number}", file=sys.stderr)
    bench.reset()
    return costs


def report(costs: dict[str, Cost]) -> list[str]:
    """Return the medians and the ratios, a line each."""
    figures = {name: cost.medians() for name, cost in costs.items()}
    lines = [f"{'':16}{'wall s':>10}{'CPU s':>10}{'remote runs':>14}"]
    lines += [f"{name:16}{wall:>10.2f}{cpu:>10.2f}{remote:>14}" for name, (wall, cpu, remote) in figures.items()]
    for name, against in RATIOS:
        ratios = [above / below for above, below in zip(figures[name], figures[against])]
        lines.append(f"{name} / {against}: " + ", ".join(f"{ratio:.1f}" for ratio in ratios))
    return lines


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inventory", type=Path, help="a host with a kernel of its own, in place of a container")
    parser.add_argument("--settings", type=Path, help="the variables of both sides, as JSON")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    enter_environment()
    settings = given.settings or HERE / ("machine.json" if given.inventory else "container.json")
    with nullcontext(given.inventory) if given.inventory else container() as inventory:
        bench = Bench(inventory, json.loads(settings.read_text(encoding="utf-8")))
        costs = rounds(bench, given.rounds)
    changed = sum(bench.original[path] != value for path, value in bench.wanted.items())
    more = f"{len(bench.limits)} limits, {len(bench.slices)} slices and a launcher"
    print(f"{len(bench.wanted)} kernel settings, {changed} of them other than before, {more}")
    print("every one read back after every run")
    print(f"medians of {given.rounds} rounds; ratios are those of wall time, controller CPU and remote runs")
    print("\n".join(report(costs)))


if __name__ == "__main__":
    main()

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The smoke test of one host, from the options to the result."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _configuration
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import (
    _child,
    _command,
    _compare,
    _death,
    _declared,
    _floors,
    _gpus,
    _history,
    _interpreter,
    _processes,
    _profiles,
    _ship,
    _verdict,
)
from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._model import Gap, Gpus, Launch, Row, row

Options = Mapping[str, Any]
Tell = Callable[[str], None]
SMI_SECONDS = 5.0
TOTAL = {"quick": 300, "full": 1800}


def smoke(options: Options, check_mode: bool, tell: Tell) -> dict[str, Any]:
    """Return the result of the whole test; in check mode nothing runs and there is no verdict."""
    if check_mode:
        return {
            "changed": False,
            "checks": [],
            "measurements": [],
            "verdict": None,
            "msg": "check mode: nothing was run",
        }
    started = time.monotonic()
    made = (
        _interpreter.make(options["venv"], options["venv_index"], options["venv_packages"])
        if options["venv"]
        else False
    )
    variables = {name: str(value) for name, value in options["environment"].items()}
    declared, strange = _declared.expectations(Host(), options["user"])
    options = {**options, "environment": variables, "expect": merged(declared, options["expect"])}
    gpus = _gpus.look(lambda words: _processes.ask(words, SMI_SECONDS), options["expect"].get("gpus"), options["busy"])
    checks = _profiles.plan(options["profile"], options["checks"], gpus.gap is None, expectations(options, gpus))
    python = _interpreter.find(
        options["python"], options["venv"], partial(_interpreter.has_torch, environment=variables)
    )
    rows, result = probe(options, gpus, checks, python, tell)
    rows += strange
    measurements = result.pop("measurements")
    rows += _floors.judge(measurements, gpus, options["floors"]) if "bandwidth" in checks else []
    result.update(
        profile=options["profile"], host=socket.gethostname(), python=python, measurements=measurements, changed=made
    )
    past = _history.last(options["history"], options["profile"]) if options["history"] else None
    compared = _compare.previous(measurements, past["measurements"], options["drop"]) if past else []
    rows += [worsened(figure) for figure in compared if figure["worse"]]
    result.update(checks=rows, verdict=_verdict.verdict(rows), msg=_verdict.sentence(rows))
    result["previous"] = {"ended": past["ended"], "verdict": past["verdict"], "figures": compared} if past else None
    result["ended"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    result["duration"] = round(time.monotonic() - started, 2)
    result["kept"] = (
        _history.keep(options["history"], result, options["history_length"]) if options["history"] else None
    )
    return result


def merged(declared: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the tuning declared, with what the operator expects over it."""
    own = {key: value for key, value in wanted.items() if value is not None}
    limits = {**declared.get("limits", {}), **(own.get("limits") or {})}
    return {**declared, **own, **({"limits": limits} if limits else {})}


def expectations(options: Options, gpus: Gpus) -> dict[str, Any]:
    """Return what the environment check compares with; where no number of GPUs is declared it is that on PCI."""
    expect = dict(options["expect"])
    if not expect.get("gpus") and gpus.count:
        some = gpus.mig or "CUDA_VISIBLE_DEVICES" in {**os.environ, **options["environment"]}
        expect["gpus"] = 1 if some else gpus.count
    if gpus.gap is not None:
        expect["gpus"] = None  # the gap itself is the row
    return expect


def worsened(figure: Mapping[str, Any]) -> Row:
    """Return the warning for a figure that fell behind the run before."""
    return row(
        "previous",
        f"previous.{figure['name']}",
        "warn",
        observed=figure["now"],
        expected=figure["before"],
        unit=figure["unit"],
        threshold_source="the run before on this host",
        reason=f"{figure['change_percent']:+.1f} % since the run before",
        action="run again; if it stays, look for what changed (driver, kernel, tuning, neighbours)",
    )


def probe(
    options: Options, gpus: Gpus, checks: Mapping[str, Any], python: str | None, tell: Tell
) -> tuple[list[Row], dict[str, Any]]:
    """Run all checks, where there is something to run them with."""
    bad = strings(options["environment"])
    if bad:  # every program of this environment would stop
        return bad, {"measurements": [], "torch": None, "gpus": list(gpus.names)}
    if python is None:
        reason = "no Python 3.9 or newer with torch was found in the usual places"
        action = "set validate_memory_python, or have an environment made with validate_memory_venv"
        return [row(name, name, "unknown", reason=reason, action=action) for name in checks], {
            "measurements": [],
            "torch": None,
            "gpus": list(gpus.names),
        }
    launch = Launch(
        python,
        options["user"],
        options["slice"],
        tuple(options["cgroups"]),
        tuple(options["launcher"]),
        options["environment"],
        options["like_service"],
    )
    deadline = time.monotonic() + (options["timeout"] or TOTAL[options["profile"]])
    return Session(launch, gpus, tell).all(dict(checks), deadline)


def strings(environment: Mapping[str, str]) -> list[Row]:
    """Return a row for each allocator string that torch would refuse."""
    rows = []
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        text = environment.get(name, os.environ.get(name, ""))
        for problem in _configuration.problems(text):
            rows.append(
                row(
                    "environment",
                    f"environment.{name}",
                    "fail",
                    observed=text,
                    reason=problem,
                    threshold_source="what torch takes",
                    action=f"correct {name}: as it stands it stops every job",
                )
            )
    return rows


class Session:
    """Runs of the probe until each check had its turn: one that dies takes only itself down."""

    def __init__(self, launch: Launch, gpus: Gpus, tell: Tell) -> None:
        """Remember what is the same for all runs."""
        self._launch, self._gpus, self._tell = launch, gpus, tell
        self._rows: list[Row] = []
        self._facts: dict[str, Any] = {"measurements": [], "torch": None, "gpus": list(gpus.names)}

    def all(self, checks: dict[str, Any], deadline: float) -> tuple[list[Row], dict[str, Any]]:
        """Run the checks; what is left after a death is run anew."""
        while checks:
            run, evidence = self._once(checks, deadline)
            begun = self._take(run)
            if not run.running and not run.late and run.code == 0:
                return self._rows, self._facts
            self._rows.append(_death.explain(run, evidence))
            checks = {name: own for name, own in checks.items() if name not in begun}
            if not begun or run.late == "total" or run.left:
                why = "the probe did not get that far" if not run.left else "a process of the probe cannot be ended"
                self._rows += [
                    row(name, name, "unknown", reason=why, action="see the row of the probe") for name in checks
                ]
                break
        return self._rows, self._facts

    def _once(self, checks: Mapping[str, Any], deadline: float) -> tuple[_child.Run, _death.Evidence]:
        folder = tempfile.mkdtemp(prefix="gpu-fleet-smoke-", dir="/tmp" if os.path.isdir("/tmp") else None)
        try:
            script = [_ship.write(folder), os.path.join(folder, "request.json")]
            gap = self._gpus.gap or Gap("skip", "")
            request = {
                "checks": checks,
                "folder": folder,
                "use_gpus": self._gpus.gap is None,
                "gap": {"status": gap.status, "reason": gap.reason, "action": gap.action},
            }
            with open(script[1], "w", encoding="utf-8") as stream:
                json.dump(request, stream)
            command = _command.build(self._launch, script, os.path.basename(folder))
            hand_over(folder, command.owner)
            log, before = _death.KernelLog(), _death.counts(command.watched)
            limits = {name: float(own["timeout"]) for name, own in checks.items()}
            run = _child.run(command, folder, limits, deadline, self._hear)
            return run, _death.Evidence(before, _death.counts(command.watched), log.lines())
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _hear(self, event: Mapping[str, Any]) -> None:
        if event["event"] in ("import", "start"):
            self._tell(event.get("check", "import of torch"))

    def _take(self, run: _child.Run) -> set[str]:
        """Take rows, figures and durations in; return the checks that were begun."""
        begun: set[str] = set()
        for event in run.events:
            kind, check = event.pop("event"), event.pop("check", "")
            begun |= {check} if kind == "start" else set()
            if kind == "row":
                self._rows.append(row(check, **{key: event[key] for key in event}))
            elif kind == "measure":
                self._facts["measurements"].append({"check": check, **event})
            elif kind == "end":
                for own in self._rows:
                    if own["check"] == check:
                        own["duration"] = event["duration"]
            elif kind == "host":
                self._facts.update(torch=event["torch"], gpus=event["gpus"] or self._facts["gpus"])
        return begun


def hand_over(folder: str, owner: tuple[int, int]) -> None:
    """Give the files to the user that runs the probe."""
    if owner[0] == os.geteuid():
        return
    for place, _folders, names in os.walk(folder):
        for path in (place, *(os.path.join(place, name) for name in names)):
            os.chown(path, *owner)

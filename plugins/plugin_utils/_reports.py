# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a fleet in its forms: lines, JUnit, HTML and Prometheus; functions from results to text."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

Results = Mapping[str, Mapping[str, Any]]
STATUSES = ("pass", "warn", "fail", "skip", "unknown")
STYLE = (
    "body{font:14px sans-serif}td,th{padding:2px 10px;text-align:left}"
    ".fail{background:#fbb}.unknown{background:#fd9}.warn{background:#ffb}"
)
UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def verdict(result: Mapping[str, Any]) -> str:
    """Return the word for one host; a host without a result is unknown."""
    if not result.get("failed") and "verdict" in result:
        return result["verdict"] or "not run"
    return "unknown"


def message(result: Mapping[str, Any]) -> str:
    """Return the sentence for one host."""
    return str(result.get("msg") or ("" if result else "the host was not reached"))


def lines(results: Results, outliers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each host and each outlier."""
    width = max((len(host) for host in results), default=4)
    rows = [f"{host.ljust(width)}  {verdict(result).ljust(7)}  {message(result)}" for host, result in results.items()]
    return ["host".ljust(width) + "  verdict  first thing to look at", *rows, *(outlier(row) for row in outliers)]


def outlier(row: Mapping[str, Any]) -> str:
    """Return the sentence for one outlier."""
    spreads = f", {row['off_spreads']} spreads" if row["off_spreads"] else ""
    off = f"{row['off_percent']:+.1f} %{spreads} off the median {row['median']:.6g} of {row['hosts']} like hosts"
    return f"{row['host']}: {row['name']} is {row['value']} {row['unit']}, {off}"


def text(value: Any) -> str:
    """Return a value as XML can hold it."""
    return UNPRINTABLE.sub("?", str(value))


def junit(results: Results, outliers: Sequence[Mapping[str, Any]]) -> str:
    """Return JUnit XML: a suite for each host; fail is a failure, unknown an error, skip a skip, warn an output."""
    root = ElementTree.Element("testsuites", name="validate_gpu_nodes")
    for host, result in results.items():
        checks = [] if result.get("failed") else list(result.get("checks") or [])
        if not checks and verdict(result) != "not run":
            checks = [
                {
                    "check": "host",
                    "name": "host",
                    "status": "unknown",
                    "reason": message(result),
                    "action": "see the play",
                }
            ]
        suite = ElementTree.SubElement(root, "testsuite", name=text(host), tests=str(len(checks)))
        for name, status in (("failures", "fail"), ("errors", "unknown"), ("skipped", "skip")):
            suite.set(name, str(sum(check["status"] == status for check in checks)))
        for check in checks:
            _case(suite, check)
        own = [outlier(row) for row in outliers if row["host"] == host]
        if own:
            ElementTree.SubElement(suite, "system-out").text = text("\n".join(own))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, check: Mapping[str, Any]) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"{suite.get('name')}.{check['check']}", name=text(check["name"])
    )
    case.set("time", str(check.get("duration", 0)))
    words = f"observed {check.get('observed')}, expected {check.get('expected')} {check.get('unit', '')}".strip()
    reason = text(check.get("reason") or words)
    tag = {"fail": "failure", "unknown": "error", "skip": "skipped", "warn": "system-out"}.get(check["status"])
    if tag == "system-out":
        ElementTree.SubElement(case, tag).text = text(f"warn: {reason}; {check.get('action', '')}")
    elif tag:
        ElementTree.SubElement(case, tag, message=reason).text = text(
            f"{words}; {check.get('threshold_source', '')}; {check.get('action', '')}"
        )


def prometheus(results: Results, outliers: Sequence[Mapping[str, Any]]) -> str:
    """Return the text format: verdict, number of checks by status, figures and outliers of each host."""
    rows = ["# TYPE gpu_fleet_validate_healthy gauge"]
    rows += [
        f'gpu_fleet_validate_healthy{{host="{_label(host)}"}} {int(verdict(one) in ("pass", "warn"))}'
        for host, one in results.items()
    ]
    rows.append("# TYPE gpu_fleet_validate_checks gauge")
    for host, one in results.items():
        found = [check["status"] for check in one.get("checks") or []]
        rows += [
            f'gpu_fleet_validate_checks{{host="{_label(host)}",status="{status}"}} {found.count(status)}'
            for status in STATUSES
        ]
    rows.append("# TYPE gpu_fleet_validate_figure gauge")
    for host, one in results.items():
        for figure in one.get("measurements") or []:
            names = f'host="{_label(host)}",name="{_label(figure["name"])}",unit="{_label(figure["unit"])}"'
            rows.append(f"gpu_fleet_validate_figure{{{names}}} {figure['value']}")
    rows.append("# TYPE gpu_fleet_validate_outlier_percent gauge")
    rows += [
        f'gpu_fleet_validate_outlier_percent{{host="{_label(row["host"])}",name="{_label(row["name"])}"}} '
        f"{row['off_percent']}"
        for row in outliers
    ]
    return "\n".join(rows) + "\n"


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def page(results: Results, outliers: Sequence[Mapping[str, Any]]) -> str:
    """Return one HTML page without anything from elsewhere: hosts, outliers, and what is not a pass."""
    hosts = [(verdict(one), host, verdict(one), message(one)) for host, one in results.items()]
    bad = [
        (
            check["status"],
            host,
            check["name"],
            f"{check.get('observed')} / {check.get('expected')} {check.get('unit', '')}",
            check.get("reason", ""),
            check.get("action", ""),
        )
        for host, one in results.items()
        for check in one.get("checks") or []
        if check["status"] in ("fail", "unknown", "warn")
    ]
    parts = [
        _table("Hosts", hosts),
        _table("Outliers", [("warn", outlier(row)) for row in outliers]),
        _table("Not passed", bad),
    ]
    head = f'<meta charset="utf-8"><title>GPU fleet</title><style>{STYLE}</style>'
    return f'<!DOCTYPE html><html lang="en">{head}{"".join(parts)}</html>\n'


def _table(title: str, rows: Sequence[Sequence[Any]]) -> str:
    cells = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row[1:]) for row in rows]
    body = "".join(f'<tr class="{html.escape(str(row[0]))}">{line}</tr>' for row, line in zip(rows, cells))
    return f"<h2>{title}</h2><table>{body or '<tr><td>none</td></tr>'}</table>"

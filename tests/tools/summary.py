# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add up the tests of all sessions into one closing line."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def count_report(path: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of one JUnit file."""
    tests = failed = skipped = 0
    for suite in ET.parse(path).getroot().iter("testsuite"):
        tests += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return tests - failed - skipped, failed, skipped


def count_sessions(results: Path) -> tuple[int, int, int]:
    """All sessions that nox reported: those with a JUnit file by its tests, the others as one test each."""
    passed = failed = skipped = 0
    for session in json.loads((results / "nox.json").read_text(encoding="utf-8"))["sessions"]:
        report = results / f"{session['name']}.xml"
        ok = session["result"] == "success"
        counts = count_report(report) if report.exists() else (int(ok), int(not ok), 0)
        passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
        if not ok and counts[1] == 0:
            failed += 1
    return passed, failed, skipped


def main() -> int:
    """Print the line; non-zero where something failed or nothing ran."""
    passed, failed, skipped = count_sessions(Path(sys.argv[1]))
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main())

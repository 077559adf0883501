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


def count_session(result: str, reports: list[Path]) -> tuple[int, int, int]:
    """One session of nox: its tests by its JUnit file, else one test; a failure that no test shows is one more."""
    if result == "skipped":
        return 0, 0, 1
    if not reports:
        return int(result == "success"), int(result != "success"), 0
    passed, failed, skipped = count_report(reports[0])
    unseen = result != "success" and failed == 0
    return passed, failed + unseen, skipped


def count_sessions(results: Path) -> tuple[int, int, int]:
    """All sessions that nox reported."""
    sessions = json.loads((results / "nox.json").read_text(encoding="utf-8"))["sessions"]
    counts = []
    for session in sessions:
        # A session with parameters has them in its signature alone.
        files = [results / f"{name}.xml" for name in (session["name"], *session["signatures"])]
        counts.append(count_session(session["result"], [path for path in files if path.exists()]))
    passed, failed, skipped = (sum(column) for column in zip(*counts)) if counts else (0, 0, 0)
    return passed, failed, skipped


def main() -> int:
    """Print the line; non-zero where something failed or nothing ran."""
    passed, failed, skipped = count_sessions(Path(sys.argv[1]))
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main())

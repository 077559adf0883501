# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say how two quick runs agree with each other and with the bare copy loop, and what a full run found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

AGREE, RATIO, QUICK_SECONDS = 5.0, 0.98, 30.0
PINNED = ("host_to_device_pinned", "device_to_host_pinned")


def load(folder: Path, name: str) -> dict[str, Any]:
    """Return one result."""
    result: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return result


def figures(result: dict[str, Any]) -> dict[str, float]:
    """Return the bandwidths of a result by name."""
    return {row["name"]: row["value"] for row in result["measurements"] if row["check"] == "bandwidth"}


def main(folder: Path) -> int:
    """Print the comparison; 1 if a promise does not hold."""
    broken = []
    runs = {name: load(folder, name) for name in ("quick1", "quick2", "full")}
    for name, run in runs.items():
        print(f"{name}: {run['verdict']} in {run['duration']} s: {run['msg']}")
        for row in run["checks"]:
            if row["status"] != "pass":
                print(
                    f"  {row['status']} {row['name']}: {row['reason']} {row['observed']} / {row['expected']} "
                    f"{row['unit']}; {row['action']}"
                )
        broken += [f"{name} is {run['verdict']}"] if run["verdict"] not in ("pass", "warn") else []
        broken += [f"{name} took {run['duration']} s"] if name != "full" and run["duration"] > QUICK_SECONDS else []
    first, second = (figures(runs[name]) for name in ("quick1", "quick2"))
    for name, value in ((name, value) for name, value in first.items() if name in second):
        change = 100 * (second[name] - value) / value
        print(f"{name}: {value:.2f} and {second[name]:.2f} GB/s ({change:+.2f} %)")
        broken += [f"{name} differs by {change:.1f} %"] if abs(change) > AGREE else []
    bare = [load(folder, name) for name in ("copy_loop", "copy_loop2")]
    for kind, value in bare[0].items():
        if not {f"bandwidth.gpu0.{kind}"} <= set(first) & set(second):
            broken.append(f"{kind} was not measured")
            continue
        best = max(value, bare[1][kind])
        ratio = max(first[f"bandwidth.gpu0.{kind}"], second[f"bandwidth.gpu0.{kind}"]) / best
        print(f"{kind}: {100 * ratio:.2f} % of the bare loop ({best:.2f} GB/s)")
        broken += [f"{kind} is {ratio:.3f} of the bare loop"] if kind in PINNED and ratio < RATIO else []
    print("\n".join(f"BROKEN: {line}" for line in broken) or "all promises hold")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for nvidia-smi that answers from the JSON file named by FAKE_SMI_DATA and notes each call beside it.

The file has an entry for each command line ("-q -x", "topo -m", "nvlink --status", or "*" for all): `out`, `err`, `rc`,
`hang` (seconds, deaf to TERM and with a child) and `freeze` (a folder of the version 1 freezer to be frozen in).
"query" has `rows`, one mapping of fields to words for each GPU; a field that the first row lacks is not a valid one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

UNIT = re.compile(r" (MiB|W|MHz|%|C)$")


def misbehave(said: dict[str, Any]) -> None:
    """Hang or freeze as told."""
    if said.get("freeze"):
        folder = Path(said["freeze"])
        (folder / "cgroup.procs").write_text(str(os.getpid()))
        (folder / "freezer.state").write_text("FROZEN")
    if said.get("hang"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with subprocess.Popen(["sleep", str(said["hang"])]):
            time.sleep(said["hang"])


def table(said: dict[str, Any], fields: list[str], form: str) -> int:
    """Print the rows of --query-gpu."""
    for field in fields:
        if field not in said["rows"][0]:
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    if "noheader" not in form:
        print(", ".join(fields))
    for row in said["rows"]:
        print(", ".join(UNIT.sub("", row[field]) if "nounits" in form else row[field] for field in fields))
    return int(said.get("rc", 0))


def main() -> int:
    """Answer one command line."""
    path, words = os.environ["FAKE_SMI_DATA"], sys.argv[1:]
    with open(f"{path}.calls", "a", encoding="utf-8") as calls:
        calls.write(" ".join(words) + "\n")
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    query = words[0].startswith("--query-gpu=") if words else False
    said = data.get("query" if query else " ".join(words), data.get("*", {"rc": 1}))
    misbehave(said)
    if query and "rows" in said:
        return table(said, words[0].partition("=")[2].split(","), words[1])
    sys.stdout.write(said.get("out", ""))
    sys.stderr.write(said.get("err", ""))
    return int(said.get("rc", 0))


sys.exit(main())

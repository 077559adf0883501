# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""For facts_check.sh: record what nvidia-smi says, measure gpu_facts with each of its sources, and compare them."""

from __future__ import annotations

import csv
import json
import os
import re
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MIB = 1024 * 1024
RUNS = 5
MOST_SECONDS = 0.3  # beside a module that does nothing, which takes 0.2 s on a fast host
# A figure, and the field of --query-gpu with how it is read; `moves` may change between two questions.
Read = Callable[[str], Any]
LATER = {"power.draw": 40.0, "temperature.gpu": 5, "temperature.memory": 5, "utilization.gpu": 100}
LATER |= {"utilization.memory": 100, "clocks.graphics": 2000, "clocks.sm": 2000, "clocks.memory": 2000}
LATER |= {"memory.used": 64 * MIB, "memory.free": 64 * MIB, "pcie.generation": 5, "pcie.replays": 5}
QUERY: dict[str, tuple[str, Read]] = {
    "index": ("index", int),
    "name": ("name", str),
    "uuid": ("uuid", str),
    "compute_capability": ("compute_cap", str),
    **{
        f"memory.{part}": (f"memory.{part}", lambda word: int(word) * MIB)
        for part in ("total", "used", "free", "reserved")
    },
    "persistence": ("persistence_mode", lambda word: word == "Enabled"),
    "compute_mode": ("compute_mode", str),
    "mig.enabled": ("mig.mode.current", lambda word: word == "Enabled"),
    "mig.pending": ("mig.mode.pending", lambda word: word == "Enabled"),
    "ecc.enabled": ("ecc.mode.current", lambda word: word == "Enabled"),
    "ecc.pending": ("ecc.mode.pending", lambda word: word == "Enabled"),
    "ecc.volatile_corrected": ("ecc.errors.corrected.volatile.total", int),
    "ecc.volatile_uncorrected": ("ecc.errors.uncorrected.volatile.total", int),
    "ecc.aggregate_corrected": ("ecc.errors.corrected.aggregate.total", int),
    "ecc.aggregate_uncorrected": ("ecc.errors.uncorrected.aggregate.total", int),
    "retired_pages.single_bit": ("retired_pages.single_bit_ecc.count", int),
    "retired_pages.double_bit": ("retired_pages.double_bit.count", int),
    "pcie.generation": ("pcie.link.gen.current", int),
    "pcie.generation_max": ("pcie.link.gen.max", int),
    "pcie.width": ("pcie.link.width.current", int),
    "pcie.width_max": ("pcie.link.width.max", int),
    **{
        f"clocks.{name}{suffix}": (f"clocks.{when}.{name}", int)
        for name in ("graphics", "sm", "memory")
        for suffix, when in (("", "current"), ("_max", "max"))
    },
    "power.draw": ("power.draw", float),
    "power.limit": ("enforced.power.limit", float),
    "temperature.gpu": ("temperature.gpu", int),
    "temperature.memory": ("temperature.memory", int),
    "utilization.gpu": ("utilization.gpu", int),
    "utilization.memory": ("utilization.memory", int),
}
DOCUMENT: dict[str, tuple[str, Read]] = {
    "architecture": ("product_architecture", str),
    "minor_number": ("minor_number", int),
    "row_remap.corrected": ("remapped_rows/remapped_row_corr", int),
    "row_remap.uncorrected": ("remapped_rows/remapped_row_unc", int),
    "row_remap.pending": ("remapped_rows/remapped_row_pending", lambda word: word == "Yes"),
    "row_remap.failed": ("remapped_rows/remapped_row_failure", lambda word: word == "Yes"),
    "pcie.replays": ("pci/replay_counter", int),
}
COMMANDS = {
    "q-x.xml": ["-q", "-x"],
    "query.csv": [
        f"--query-gpu=pci.bus_id,driver_version,{','.join(field for field, _read in QUERY.values())}",
        "--format=csv",
    ],
    "topo-m.txt": ["topo", "-m"],
    "nvlink-status.txt": ["nvlink", "--status"],
}
FILES = ("/proc/driver/nvidia/version", "/proc/meminfo")
NOTHING = "from ansible.module_utils.basic import AnsibleModule; AnsibleModule({}).exit_json()"
ALONE = """
import json, sys
hide, path = json.loads(sys.argv[1])
if hide:
    sys.modules["pynvml"] = None
from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _collect
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
json.dump(_collect.gather(Host()), sys.stdout, indent=1)
"""


def record(folder: Path) -> None:
    """Keep what the tool and the kernel say."""
    for name, words in COMMANDS.items():
        (folder / name).write_text(
            subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=False).stdout
        )
    for path in (*map(Path, FILES), *Path("/proc/driver/nvidia/gpus").glob("*/information")):
        if path.exists():
            (folder / path.as_posix().strip("/").replace("/", "-").replace(":", "_")).write_text(path.read_text())


def measure(out: Path) -> int:
    """Run the module as Ansible would on the node, and each source alone; return 1 where that takes too long."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/.ansible/collections:{os.environ.get('PYTHONPATH', '')}"}
    text = json.dumps({"ANSIBLE_MODULE_ARGS": {}})
    took: dict[str, list[float]] = {"nothing": [], "gpu_facts": []}
    for _run in range(RUNS):
        for name, words in (("nothing", ["-c", NOTHING]), ("gpu_facts", [str(ROOT / "plugins/modules/gpu_facts.py")])):
            began = time.monotonic()
            command = [sys.executable, *words]
            done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True, check=True)
            took[name].append(time.monotonic() - began)
    facts = json.loads(done.stdout)["ansible_facts"]["gpu_fleet_gpu"]
    (out / "nvml.json").write_text(json.dumps(facts, indent=1))
    for name, path in (("nvidia-smi", os.environ["PATH"]), ("sysfs", "/nonexistent")):
        command = [sys.executable, "-c", ALONE, json.dumps([True, ""])]
        done = subprocess.run(command, env={**environment, "PATH": path}, capture_output=True, text=True, check=True)
        (out / f"{name}.json").write_text(done.stdout)
        print(f"{name} alone: state {json.loads(done.stdout)['state']}, {json.loads(done.stdout)['duration']} s")
    (out / "times.json").write_text(json.dumps({**took, "gathering": facts["duration"]}))
    nothing, median = (statistics.median(times) for times in took.values())
    beside = f"{nothing:.3f} s for a module that does nothing, ratio {median / nothing:.1f}"
    print(
        f"module: median {median:.3f} s of {RUNS} ({beside}), gathering {facts['duration']} s, state {facts['state']}"
    )
    return int(median > nothing + MOST_SECONDS)


def look_up(gpu: Mapping[str, Any], name: str) -> Any:
    """Return a figure by its dotted name."""
    group, dot, key = name.partition(".")
    return gpu[group][key] if dot else gpu[group]


def told(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the figures by PCI address as the tool's own output has them; None where it has no number."""
    found: dict[str, dict[str, Any]] = {}
    head, *rows = csv.reader((folder / "query.csv").read_text().splitlines(), skipinitialspace=True)
    if head[0] != "pci.bus_id":
        raise SystemExit(f"nvidia-smi: says {head} where a table was asked for")
    for row in rows:
        words = [re.sub(r" (MiB|W|MHz|%)$", "", word) for word in row]
        figures = {name: value(word, read) for (name, (_field, read)), word in zip(QUERY.items(), words[2:])}
        found[short(words[0])] = {**figures, **nearby((folder / "topo-m.txt").read_text(), figures["index"])}
    root = ET.parse(folder / "q-x.xml").getroot()
    for gpu in root.findall("gpu"):
        figures = found[short(gpu.get("id", ""))]
        figures.update({name: value(gpu.findtext(place) or "N/A", read) for name, (place, read) in DOCUMENT.items()})
        reasons = [one for one in gpu.findall("clocks_event_reasons/*") if one.text == "Active"]
        figures["throttle_reasons"] = sorted(one.tag.replace("clocks_event_reason_", "") for one in reasons)
    return found


def nearby(table: str, index: int) -> dict[str, Any]:
    """Return the CPUs and the node that `topo -m` names; nothing where it names none."""
    found = re.search(rf"^GPU{index}\t.*\t(\d[\d,-]*)\t(\d+)\t", table, re.MULTILINE)
    return {"local_cpus": found[1], "numa_node": int(found[2])} if found else {}


def short(address: str) -> str:
    """Return a PCI address as sysfs spells it."""
    return address.lower()[4:] if len(address) > 12 else address.lower()


def value(word: str, read: Read) -> Any:
    """Read a word of the tool; None where it is none."""
    return None if re.fullmatch(r"\[?(N/A|Not Supported|Unknown Error|.*Permissions)\]?", word) else read(word)


def differences(facts: Mapping[str, Any], out: Path) -> Iterator[dict[str, Any]]:
    """Yield each figure with what the tool said before and after."""
    before, after = told(out / "before"), told(out / "after")
    for gpu in facts["gpus"]:
        for name in before[gpu["bus_id"]]:
            ours, theirs = look_up(gpu, name), [one[gpu["bus_id"]][name] for one in (before, after)]
            yield {"figure": name, "ours": ours, "theirs": theirs, "same": agrees(name, ours, theirs)}
    root = ET.parse(out / "before" / "q-x.xml").getroot()
    whole = {
        "count": (facts["visible_count"], len(before)),
        "driver.loaded": (facts["driver"]["loaded"], root.findtext("driver_version")),
        "driver.cuda": (facts["driver"]["cuda"], root.findtext("cuda_version")),
    }
    for name, (here, there) in whole.items():
        yield {"figure": name, "ours": here, "theirs": [there], "same": here == there}


def agrees(name: str, ours: Any, theirs: list[Any]) -> bool:
    """Tell whether a figure is one of the tool's, or between and near them where it moves; sizes to the MiB."""
    if name == "throttle_reasons":  # idle may begin or end between the questions
        return set(ours) - {"gpu_idle"} in [set(one) - {"gpu_idle"} for one in theirs]
    if ours in theirs:
        return True
    if ours is None or None in theirs or isinstance(ours, (str, bool)):
        return False
    room = LATER.get(name, MIB if name.startswith("memory.") else 0)
    return bool(min(theirs) - room <= ours <= max(theirs) + room)


def compare(out: Path) -> int:
    """Compare, and write the recording."""
    status, result = 0, {}
    for name in ("ansible", "nvml", "nvidia-smi"):
        rows = list(differences(json.loads((out / f"{name}.json").read_text()), out))
        wrong = [row for row in rows if not row["same"]]
        result[name] = rows
        print(f"{name}: {len(rows) - len(wrong)} of {len(rows)} figures as nvidia-smi has them")
        for row in wrong:
            print(f"  {row['figure']}: {row['ours']} here, {row['theirs']} there")
        status |= bool(wrong)
    (out / "compared.json").write_text(json.dumps(result, indent=1))
    keep(out)
    return status


def keep(out: Path) -> None:
    """Write what was found once more without UUIDs and serial numbers."""
    text = (out / "before" / "q-x.xml").read_text()
    hidden = {
        uuid: f"GPU-00000000-1111-2222-3333-{number:012d}"
        for number, uuid in enumerate(re.findall(r"GPU-[0-9a-f-]{36}", text))
    }
    hidden.update(dict.fromkeys(re.findall(r"<serial>(\d+)</serial>", text), "1650000000000"))
    (out / "recording").mkdir(exist_ok=True)
    for path in (*(out / "before").iterdir(), *out.glob("*.json")):
        text = path.read_text()
        for word, instead in hidden.items():
            text = text.replace(word, instead)
        (out / "recording" / path.name).write_text(text)


def main() -> int:
    """Do one of the three."""
    verb, folder = sys.argv[1], Path(sys.argv[2])
    if verb == "record":
        record(folder)
        return 0
    return {"measure": measure, "compare": compare}[verb](folder)


if __name__ == "__main__":
    sys.exit(main())

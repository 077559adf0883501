# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What PCI and nvidia-smi say of the GPUs, and whether somebody is using them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._model import Gap, Gpus
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe._cgroup import text

PCI = "/sys/bus/pci/devices"
FIELDS = (
    "name",
    "memory.used",
    "memory.reserved",
    "memory.total",
    "utilization.gpu",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "mig.mode.current",
)
UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')  # an older driver
LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # GB/s of one lane after coding
IDLE_MIB = 256  # what a display or a monitor may hold
# Where the driver's own reserve is counted as used, an idle card shows this much.
RESERVE_MIB, RESERVE_SHARE = 1024, 0.02
BUSY_PERCENT = 10

Ask = Callable[[Sequence[str]], "str | None"]
Card = Mapping[str, str]


def on_pci(root: str = PCI) -> int:
    """Return how many NVIDIA display or 3D controllers PCI shows."""
    count = 0
    for name in os.listdir(root) if os.path.isdir(root) else []:
        vendor = (text(f"{root}/{name}/vendor") or "").strip()
        kind = (text(f"{root}/{name}/class") or "").strip()
        count += vendor == "0x10de" and kind.startswith(("0x0300", "0x0302"))
    return count


def look(ask: Ask, expected: int | None, allow_busy: bool, root: str = PCI) -> Gpus:
    """Return what is there and whether the GPU checks may run."""
    count = on_pci(root)
    if not count and not expected:
        return Gpus(0, gap=Gap("skip", "PCI shows no NVIDIA GPU and none is expected"))
    if not count:
        return Gpus(
            0,
            gap=Gap(
                "fail", f"{expected} GPUs are expected, and PCI shows none", "look at power, slot and BIOS of the GPUs"
            ),
        )
    answer, cards = _query(ask)
    if answer is None:
        reason = f"PCI shows {count} NVIDIA GPUs, and nvidia-smi gave no answer in time, so CUDA was not touched"
        return Gpus(count, gap=Gap("unknown", reason, "look at nvidia-smi by hand and at Xid messages; then reboot"))
    if not cards:
        reason = f"PCI shows {count} NVIDIA GPUs, and nvidia-smi says: {answer.strip()[:200] or 'nothing'}"
        return Gpus(count, gap=Gap("unknown", reason, "install or repair the driver"))
    mig = any(card.get("mig.mode.current") == "Enabled" for card in cards)
    names = tuple(card["name"] + (" MIG" if card.get("mig.mode.current") == "Enabled" else "") for card in cards)
    links = tuple(_link(card.get("pcie.link.gen.max", ""), card.get("pcie.link.width.max", "")) for card in cards)
    apps = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    using = "" if allow_busy else busy(cards, ask(apps))
    action = "wait until the GPUs are idle, or set validate_memory_busy to allow it"
    return Gpus(count, names, links, Gap("unknown", using, action) if using else None, mig)


def _query(ask: Ask) -> tuple[str | None, list[Card]]:
    """Ask for each card, without the fields that an older driver does not know."""
    fields, answer = list(FIELDS), None
    for _try in range(len(FIELDS)):
        answer = ask(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        unknown = UNKNOWN_FIELD.search(answer or "")
        if not unknown or unknown.group(1) not in fields:
            break
        fields.remove(unknown.group(1))
    lines = [[word.strip() for word in line.split(",")] for line in (answer or "").splitlines()]
    return answer, [dict(zip(fields, words)) for words in lines if len(words) == len(fields)]


def busy(cards: Sequence[Card], processes: str | None) -> str:
    """Return who uses the GPUs, or nothing; memory that the driver keeps for itself is nobody's use."""
    first = next((line for line in (processes or "").splitlines() if line.split(",")[0].strip().isdigit()), None)
    if first:
        return f"a GPU is in use by process {first.split(',')[0].strip()}"
    for index, card in enumerate(cards):
        used, total = _number(card.get("memory.used", "")), _number(card.get("memory.total", ""))
        hidden = _number(card.get("memory.reserved", "")) is None
        if used is not None and used > (max(RESERVE_MIB, RESERVE_SHARE * (total or 0)) if hidden else IDLE_MIB):
            return f"GPU {index} has {used:.0f} MiB in use, by a process that cannot be seen from here"
        if (_number(card.get("utilization.gpu", "")) or 0) >= BUSY_PERCENT:
            return f"GPU {index} is {card['utilization.gpu']} % busy"
    return ""


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _link(generation: str, width: str) -> float:
    lane = LANE.get(int(_number(generation) or 0), 0.0)
    return round(lane * (_number(width) or 0), 2)

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What PCI and nvidia-smi say of the GPUs, and whether somebody is using them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke._model import Gap, Gpus
from ansible_collections.gpu_fleet.node.plugins.module_utils._torch_probe._cgroup import text

PCI = "/sys/bus/pci/devices"
FIELDS = "name,memory.used,memory.reserved,memory.total,utilization.gpu,pcie.link.gen.max,pcie.link.width.max"
LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # GB/s of one lane after coding
IDLE_MIB = 256  # what a display or a monitor may hold
# Where the driver's own reserve is counted as used, an idle card shows this much.
RESERVE_MIB, RESERVE_SHARE = 1024, 0.02
BUSY_PERCENT = 10

Ask = Callable[[Sequence[str]], "str | None"]


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
    answer = ask(["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"])
    if answer is None:
        reason = f"PCI shows {count} NVIDIA GPUs, and nvidia-smi gave no answer in time, so CUDA was not touched"
        return Gpus(
            count,
            gap=Gap("unknown", reason, "look at the driver: lsmod, nvidia-smi by hand, Xid messages; then reboot"),
        )
    cards = [[field.strip() for field in line.split(",")] for line in answer.splitlines() if line.count(",") >= 6]
    if not cards:
        reason = f"PCI shows {count} NVIDIA GPUs, and nvidia-smi says: {answer.strip()[:200] or 'nothing'}"
        return Gpus(count, gap=Gap("unknown", reason, "install or repair the driver"))
    names, links = tuple(card[0] for card in cards), tuple(_link(card[5], card[6]) for card in cards)
    using = (
        ""
        if allow_busy
        else busy(cards, ask(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]))
    )
    if using:
        return Gpus(
            count,
            names,
            links,
            Gap("unknown", using, "wait until the GPUs are idle, or set validate_memory_busy to allow it"),
        )
    return Gpus(count, names, links)


def busy(cards: Sequence[Sequence[str]], processes: str | None) -> str:
    """Return who uses the GPUs, or nothing; memory that the driver keeps for itself is nobody's use."""
    first = next((line for line in (processes or "").splitlines() if line.split(",")[0].strip().isdigit()), None)
    if first:
        return f"a GPU is in use by process {first.split(',')[0].strip()}"
    for index, (_name, used, reserved, total, load, *_link) in enumerate(cards):
        mib, all_mib = _number(used), _number(total)
        allowed = IDLE_MIB if _number(reserved) is not None else max(RESERVE_MIB, RESERVE_SHARE * (all_mib or 0))
        if mib is not None and mib > allowed:
            return f"GPU {index} has {mib:.0f} MiB in use, by a process that cannot be seen from here"
        if (_number(load) or 0) >= BUSY_PERCENT:
            return f"GPU {index} is {load} % busy"
    return ""


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _link(generation: str, width: str) -> float:
    lane = LANE.get(int(_number(generation) or 0), 0.0)
    return round(lane * (_number(width) or 0), 2)

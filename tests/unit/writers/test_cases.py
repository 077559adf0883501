# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The conflict search by cases: a host tree and a setting in, the boot view and the named owners out.

A case has `tree` (path -> content, or {link: target}, or {content: ..., mode: "0755"}), `setting` (kind, key, value,
rule), `boot` (value, by) with our file in place, `conflicts` (source: value), and `refused` for a file that wins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpu_fleet.node.plugins.module_utils import _boot, _writers
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import Setting

CASES = Path(__file__).parent / "cases"
OURS = {"sysctl": "/etc/sysctl.d/zz-gpu-fleet-memory.conf", "sysfs": "/etc/tmpfiles.d/00-gpu-fleet-pages.conf"}
SYSTEMD = {"/run/systemd/system/keep": ""}


def cases() -> list[Any]:
    """Return every case of every file."""
    files = [(path.stem, yaml.safe_load(path.read_text())) for path in sorted(CASES.glob("*.yml"))]
    return [pytest.param(case, id=f"{stem}: {case['name']}") for stem, rows in files for case in rows]


def plant(root: Path, tree: dict[str, Any]) -> Host:
    """Build the tree."""
    for path, content in tree.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict) and "link" in content:
            place.symlink_to(content["link"])
            continue
        place.write_text(content["content"] if isinstance(content, dict) else content)
        place.chmod(int(content["mode"], 8) if isinstance(content, dict) else 0o644)
    return Host(str(root), live=True)


@pytest.mark.parametrize("case", cases())
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    host = plant(tmp_path, {**({} if case.get("no_systemd") else SYSTEMD), **case["tree"]})
    setting = Setting("memory", **{"rule": "exact", **case["setting"]})
    ours, writers = OURS[setting.kind], _writers.search(host, [setting])
    refused = _boot.beats_ours(setting, ours, writers)
    assert (refused.source if refused else None) == case.get("refused")
    boot = _boot.boot(setting, setting.value, ours, writers)
    assert {"value": boot.value, "by": boot.winner} == {"value": setting.value, "by": ours, **case.get("boot", {})}
    assert boot.ours == (boot.winner == ours)
    if boot.value is None:
        assert boot.reason
    found = {one.source: one.value for one in _boot.conflicts(setting, setting.value, ours, writers)}
    assert found == case.get("conflicts", {})
    if "without_us" in case:
        alone = _boot.boot(setting, None, ours, writers)
        assert {"value": alone.value, "by": alone.winner} == case["without_us"]


def test_our_own_files_are_no_conflict_but_their_namesakes_are(tmp_path: Path) -> None:
    text = "vm.swappiness = 5\n"
    tree = {"/etc/sysctl.d/zz-gpu-fleet-other.conf": text, "/usr/lib/sysctl.d/zz-gpu-fleet-vendor.conf": text}
    writers = _writers.search(plant(tmp_path, tree), [Setting("memory", "sysctl", "vm.swappiness", "1")])
    assert [one.source for one in writers] == ["/usr/lib/sysctl.d/zz-gpu-fleet-vendor.conf:1"]


def test_an_image_is_asked_for_the_words_that_its_boot_loader_passes_on(tmp_path: Path) -> None:
    words = 'GRUB_CMDLINE_LINUX="quiet transparent_hugepage=never"\n'
    plant(tmp_path, {"/etc/default/grub": words, "/proc/cmdline": "transparent_hugepage=always\n"})
    setting = Setting("pages", "sysfs", "/sys/kernel/mm/transparent_hugepage/enabled", "madvise")
    assert [one.value for one in _writers.search(Host(str(tmp_path), live=False), [setting])] == ["never"]

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tuned host, asked itself: the values in force, those that the next boot gives, and the files that are ours."""

from __future__ import annotations

import pytest
from testinfra.host import Host

SYSCTL = "/etc/sysctl.d/zz-gpu-fleet-tune_sysctl.conf"
TMPFILES = "/etc/tmpfiles.d/00-gpu-fleet-tune_thp.conf"
JOURNAL = "/var/lib/gpu-fleet/journal.json"


def in_force(host: Host, paths: list[str]) -> dict[str, str]:
    """Read many values in one run."""
    lines = (
        host.check_output("grep -H '' %s", *paths[:1])
        if len(paths) == 1
        else host.check_output(f"grep -H '' {' '.join(paths)}")
    )
    return {path: " ".join(value.split()) for path, value in (line.split(":", 1) for line in lines.splitlines())}


def assigned(text: str) -> dict[str, str]:
    """Return the last assignment of each key in sysctl.d files that stand in the order of the boot."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and line.lstrip()[:1] not in "#;")
    return {key.strip().lstrip("-").replace("/", "."): " ".join(value.split()) for key, value in pairs}


def test_values_are_in_force(host: Host, wanted: dict[str, str]) -> None:
    assert in_force(host, sorted(wanted)) == wanted if wanted else not host.file(JOURNAL).exists


def test_our_values_win_at_the_next_boot(host: Host, wanted_keys: dict[str, str]) -> None:
    winners = assigned(host.check_output("systemd-analyze cat-config sysctl.d"))
    assert {key: winners.get(key) for key in wanted_keys} == wanted_keys


def test_boot_services_leave_our_values(host: Host, wanted: dict[str, str]) -> None:
    host.check_output("/lib/systemd/systemd-sysctl")
    host.run_expect([0, 65, 73], "systemd-tmpfiles --create --prefix=/sys")
    assert not wanted or in_force(host, sorted(wanted)) == wanted


@pytest.mark.parametrize("path", [SYSCTL, TMPFILES])
def test_files_are_root_s_and_readable(host: Host, path: str) -> None:
    answer = host.run(f"stat -c '%U %G %a %F' {path}")
    assert answer.stdout.strip() in ("root root 644 regular file", "")


def test_journal_is_root_s_alone(host: Host, wanted: dict[str, str]) -> None:
    if wanted:
        assert host.check_output(f"stat -c '%U %G %a' {JOURNAL} $(dirname {JOURNAL})").splitlines() == [
            "root root 600",
            "root root 700",
        ]


def test_vendor_s_file_is_left_alone(host: Host) -> None:
    assert host.file("/usr/lib/sysctl.d/99-swap-vendor.conf").content_string == "vm.swappiness = 30\n"

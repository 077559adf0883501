# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tuned host, asked itself: the values in force, those that the next boot gives, and the files that are ours."""

from __future__ import annotations

from typing import Any

import pytest
from testinfra.host import Host

SYSCTL = "/etc/sysctl.d/zz-gpu-fleet-tune_sysctl.conf"
TMPFILES = "/etc/tmpfiles.d/00-gpu-fleet-tune_thp.conf"
FOLDER = "/var/lib/gpu-fleet"
LIMITS = "/etc/security/limits.d/zz-gpu-fleet-tune_limits.conf"
JOURNAL = f"{FOLDER}/journal.json"


def in_force(host: Host, live: dict[str, str]) -> dict[str, str]:
    """Read many values in one run."""
    lines = host.check_output(f"grep -H '' {' '.join(live)}").splitlines()
    return {path: " ".join(value.split()) for path, value in (line.split(":", 1) for line in lines)}


def assigned(text: str) -> dict[str, str]:
    """Return the last assignment of each key in sysctl.d files that stand in the order of the boot."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and line.lstrip()[:1] not in "#;")
    return {key.strip().lstrip("-").replace("/", "."): " ".join(value.split()) for key, value in pairs}


def test_values_are_in_force(host: Host, live: dict[str, str]) -> None:
    assert in_force(host, live) == live


def test_our_values_win_at_the_next_boot(host: Host, stored: dict[str, str]) -> None:
    winners = assigned(host.check_output("systemd-analyze cat-config sysctl.d"))
    ours = {path: value for path, value in stored.items() if path.startswith("/proc/sys/")}
    assert {path: winners.get(path[len("/proc/sys/") :].replace("/", ".")) for path in ours} == ours


def test_boot_services_leave_our_values(host: Host, live: dict[str, str]) -> None:
    host.check_output("/usr/lib/systemd/systemd-sysctl")
    host.run_expect([0, 65, 73], "systemd-tmpfiles --create --prefix=/sys")
    assert in_force(host, live) == live


@pytest.mark.parametrize(
    ("path", "mode", "reason"),
    [
        (SYSCTL, "644", "/proc/sys/"),
        (TMPFILES, "644", "/sys/"),
        (LIMITS, "644", "/etc/"),
        (JOURNAL, "600", "/"),
        (FOLDER, "700", "/"),
    ],
)
def test_files_of_ours_are_where_they_are_needed(
    host: Host, stored: dict[str, str], variables: dict[str, Any], path: str, mode: str, reason: str
) -> None:
    logins = ["/etc/security"] if variables["lab_logins"] else []
    needed = any(setting.startswith(reason) for setting in (*stored, *logins))
    assert host.run(f"stat -c '%U %G %a' {path}").stdout.strip() == (f"root root {mode}" if needed else "")


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_a_login_has_the_limits(host: Host, variables: dict[str, Any], user: str) -> None:
    asked = "ulimit -Sn; ulimit -Hn; ulimit -Sl; ulimit -Hl"
    assert host.check_output(f"su -s /bin/sh {user} -c '{asked}'").split() == variables["lab_logins"]


def test_a_process_in_a_slice_has_its_limits(host: Host, variables: dict[str, Any]) -> None:
    for name, files in variables.get("lab_groups", {}).items():
        paths = " ".join(f"/sys/fs/cgroup/{path}" for path in files)
        found = host.check_output(f"systemd-run --quiet --scope --slice={name} grep -H '' {paths}").splitlines()
        values = dict(line.split(":", 1) for line in found)
        assert values == {f"/sys/fs/cgroup/{path}": value for path, value in files.items()}


def test_a_service_runs_with_its_limits(host: Host, variables: dict[str, Any]) -> None:
    for name, rows in variables.get("lab_services", {}).items():
        pid = host.check_output(f"systemctl show --property=MainPID --value {name}")
        lines = host.check_output(f"cat /proc/{pid}/limits").splitlines()
        for row, value in rows.items():
            assert [" ".join(line[len(row) :].split()) for line in lines if line.startswith(row)] == [value]


def test_one_reload_for_all_units(host: Host, variables: dict[str, Any]) -> None:
    """F16: the first run reloads once where something needs it, and the second run not at all."""
    if "lab_reloads" in variables:
        lines = host.check_output("journalctl --boot --output=cat _PID=1").splitlines()
        assert sum(line.startswith("Reloading") for line in lines) == variables["lab_reloads"]


def test_only_the_hog_dies(host: Host, variables: dict[str, Any]) -> None:
    """A job that takes more than its slice may have is killed in it; its neighbour and sshd live on."""
    name = variables.get("lab_hog")
    if not name:
        return
    asked = "systemctl show --property=MainPID --value ssh.service gpu-neighbour.service"
    host.check_output(f"systemd-run --quiet --unit=gpu-neighbour --slice={name} sleep 600")
    before = host.check_output(asked)
    hog = "python3 -c 'held = [bytearray(1 << 20) for _ in range(4096)]'"
    killed = host.check_output(f"systemd-run --quiet --wait --pipe --slice={name} {hog}; echo status $?")
    told = host.check_output("journalctl --boot --dmesg --output=cat | grep -i oom-kill: | tail -n 1")
    assert "status 0" not in killed and f"/{name}/" in told
    assert host.check_output(asked) == before, "the neighbour and sshd are the same processes as before"
    host.check_output("systemctl stop gpu-neighbour.service")


def test_vendor_s_file_is_left_alone(host: Host) -> None:
    assert host.file("/usr/lib/sysctl.d/99-swap-vendor.conf").content_string == "vm.swappiness = 30\n"

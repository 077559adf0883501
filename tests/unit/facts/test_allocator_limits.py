# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of a login, of a service and of a process, told apart (F12, F27)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpu_fleet.node.plugins.module_utils import _effective_limits
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _limits
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._scene import Options, Scene
from ansible_collections.gpu_fleet.node.plugins.module_utils._effective_limits import User
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host

CASES = yaml.safe_load((Path(__file__).parent / "cases" / "allocator_limits.yml").read_text(encoding="utf-8"))
SECURITY = "/etc/security/"
PASSWD = "root:x:0:0::/root:/bin/sh\nada:x:1500:1500::/home/ada:/bin/sh\nbob:x:1600:100::/home/bob:/bin/sh\n"
GROUP = "root:x:0:\nada:x:1500:\nml:x:2000:bob,ada\nstaff:x:3000:bob\n"
PAM = "session required pam_limits.so\n"


def tree(root: Path, files: dict[str, str]) -> Host:
    """Make a machine with two users and these files."""
    basis = {"etc/passwd": PASSWD, "etc/group": GROUP, "etc/pam.d/sshd": PAM, "proc/sys/fs/nr_open": "1048576\n"}
    for name, content in {**basis, **files}.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return Host(str(root))


def scene(host: Host, **options: Any) -> Scene:
    return Scene(host, Options(**options), time.monotonic() + 5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_effective_limits(tmp_path: Path, case: dict[str, Any]) -> None:
    files = {f"{SECURITY}{name}": content for name, content in case["files"].items()}
    host = tree(tmp_path, {**files, "etc/os-release": case.get("release", "ID=debian\n")})
    user, groups = _limits.account(host, case.get("user", "ada"))
    found = _effective_limits.effective(_effective_limits.files(host), user, groups)
    shown = {
        item: [limit.soft, limit.hard, *((line or "").replace(SECURITY, "") or None for line in sources(limit))]
        for item, limit in found.items()
    }
    assert shown == case["limits"]


def sources(limit: _effective_limits.Limit) -> tuple[str | None, str | None]:
    return limit.soft_source, limit.hard_source


def test_a_login_is_told_in_the_kernels_units_with_the_line_that_wins(tmp_path: Path) -> None:
    host = tree(tmp_path, {f"{SECURITY}limits.conf": "* - memlock 64\n* hard nofile unlimited\n"})
    login = _limits.logins(scene(host, users=("ada",)))[0]
    assert (login["uid"], login["groups"], login["reason"]) == (1500, ["ada", "ml"], None)
    memlock, nofile, stack = (login["limits"][item] for item in ("memlock", "nofile", "stack"))
    assert (memlock["soft"], memlock["hard"], memlock["soft_source"]) == (65536, 65536, f"{SECURITY}limits.conf:1")
    assert (nofile["soft"], nofile["hard"]) == (None, 1048576)  # no limit on open files means fs.nr_open
    assert (stack["soft"], stack["reason"]) == (None, _limits.INHERITED)


def test_a_login_without_pam_limits_or_without_its_user_says_so(tmp_path: Path) -> None:
    host = tree(tmp_path, {f"{SECURITY}limits.conf": "* - nofile 5\n@ml - nproc 7\n"})
    unknown = _limits.logins(scene(host, users=("eve",)))[0]
    assert unknown["limits"]["nofile"]["soft"] == 5 and unknown["limits"]["nproc"]["soft"] is None
    assert unknown["reason"] == "eve: no such user, so lines for groups and ids do not count"
    tree(tmp_path, {"etc/pam.d/sshd": "session required pam_unix.so\n"})
    bare = _limits.logins(scene(host, users=("ada",)))[0]
    assert bare["limits"]["nofile"]["soft"] is None
    assert "no service in /etc/pam.d uses pam_limits" in bare["limits"]["nofile"]["reason"]


def test_an_exempted_login_names_the_line(tmp_path: Path) -> None:
    host = tree(tmp_path, {f"{SECURITY}limits.conf": "* - nofile 5\nada -\n"})
    login = _limits.logins(scene(host, users=("ada",)))[0]
    assert login["limits"]["nofile"]["reason"] == f"{SECURITY}limits.conf:2: takes ada out of all limits"


@pytest.mark.parametrize(
    ("item", "word", "value"),
    [
        ("memlock", "64k", 65536),  # pam_limits takes the number and drops the rest
        ("nofile", "unlimited", 1048576),
        ("stack", "unlimited", "unlimited"),
        ("cpu", "2", 120),
        ("nice", "-20", 40),
        ("nproc", "many", None),
        ("nproc", None, None),
    ],
)
def test_values_in_the_kernels_units(item: str, word: str | None, value: Any) -> None:
    assert _limits.value(item, word, 1048576) == value


def test_what_not_even_root_may_have_is_not_what_a_login_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = tree(tmp_path, {f"{SECURITY}limits.conf": "* - memlock unlimited\n* - nofile 5\n"})
    host.live = True
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(_limits._kind, "obstacle", lambda _host, place, _value: "no" if "memlock" in place else None)
    monkeypatch.setattr(_limits, "account", lambda _host, name: (User(name, 1, 1), {}))
    limits = _limits.logins(scene(host, users=("ada",)))[0]["limits"]
    assert (limits["memlock"]["soft"], limits["memlock"]["hard"], limits["nofile"]["hard"]) == (None, None, 5)
    assert limits["memlock"]["reason"].endswith("limits.conf:1: asks for unlimited, which not even root may have here")


TABLE = """Limit                     Soft Limit           Hard Limit           Units
Max open files            {}                 {}               files
Max locked memory         65536                65536                bytes
Max processes             unlimited            unlimited            processes
"""


def test_the_table_of_a_process() -> None:
    assert _limits.read_table(TABLE.format("1024", "524288")) == {
        "nofile": {"soft": 1024, "hard": 524288},
        "memlock": {"soft": 65536, "hard": 65536},
        "nproc": {"soft": "unlimited", "hard": "unlimited"},
    }


SYSTEMCTL = """#!/bin/sh
cat <<END
Id=slurmd.service
LoadState=loaded
ActiveState=active
MainPID=77
LimitNOFILE=524288
LimitNOFILESoft=1024
LimitMEMLOCK={memlock}
LimitMEMLOCKSoft={memlock}

Id=absent.service
LoadState=not-found
ActiveState=inactive
MainPID=0
LimitNOFILE=524288
LimitNOFILESoft=1024
END
"""


@pytest.fixture(name="manager")
def _manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first in the path, for a stand-in of systemctl."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def put(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    path.chmod(0o755)


def test_f27_a_login_and_a_service_are_told_apart(tmp_path: Path, manager: Path) -> None:
    put(manager / "systemctl", SYSTEMCTL.format(memlock="infinity"))
    limits = {f"{SECURITY}limits.conf": "* soft nofile 65536\n* - memlock unlimited\n"}
    host = tree(tmp_path / "fix", {**limits, "proc/77/limits": TABLE.format("1024", "524288")})
    facts = _limits.gather(scene(host, users=("ada",), services=("slurmd", "absent.service")))
    service, absent = facts["services"]
    assert facts["logins"][0]["limits"]["nofile"]["soft"] == 65536
    assert service["configured"]["nofile"] == service["running"]["nofile"] == {"soft": 1024, "hard": 524288}
    # F12: configured unlimited, running 65536
    assert service["configured"]["memlock"]["hard"] == "unlimited"
    assert (service["running"]["memlock"]["hard"], service["pid"]) == (65536, 77)
    assert (service["differing"], service["restart_needed"]) == (["memlock"], True)
    assert (absent["configured"], absent["restart_needed"]) == (None, None)
    assert absent["reason"] == "absent.service: there is no such unit"


def test_a_service_with_its_limits_in_force_needs_no_restart(tmp_path: Path, manager: Path) -> None:
    put(manager / "systemctl", SYSTEMCTL.format(memlock="65536"))
    host = tree(tmp_path / "fix", {"proc/77/limits": TABLE.format("1024", "524288")})
    service = _limits.services(scene(host, services=("slurmd", "absent")))[0]
    assert (service["differing"], service["restart_needed"], service["reason"]) == ([], False, None)


@pytest.mark.parametrize(
    ("running", "differs"),
    [
        ({"soft": 1024, "hard": 4096}, False),
        ({"soft": 4096, "hard": 4096}, False),  # it raised its own soft limit
        ({"soft": 512, "hard": 4096}, True),
        ({"soft": 1024, "hard": 2048}, True),
        ({"soft": 2048, "hard": 2048}, True),
        ({"soft": 1024, "hard": "unlimited"}, True),
    ],
)
def test_what_counts_as_a_difference(running: dict[str, Any], differs: bool) -> None:
    found = _limits.differing({"nofile": {"soft": 1024, "hard": 4096}}, {"nofile": running})
    assert found == (["nofile"] if differs else [])


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho 'Failed to connect to bus: Host is down' >&2; exit 1\n", "Failed to connect to bus"),
        ("#!/bin/sh\necho Id=slurmd.service\n", "told about 1 units, and 2 were asked for"),
    ],
)
def test_no_manager_is_a_reason(tmp_path: Path, manager: Path, script: str, reason: str) -> None:
    put(manager / "systemctl", script)
    rows = _limits.services(scene(Host(str(tmp_path)), services=("slurmd", "other")))
    assert [row["restart_needed"] for row in rows] == [None, None]
    assert all(reason in row["reason"] for row in rows)


def test_a_manager_that_hangs_is_given_up(tmp_path: Path, manager: Path) -> None:
    put(manager / "systemctl", "#!/bin/sh\ntrap '' TERM\nsleep 60\n")
    began = time.monotonic()
    rows = _limits.services(Scene(Host(str(tmp_path)), Options(services=("slurmd",)), began + 0.6))
    assert time.monotonic() - began < 30  # half of what the manager sleeps
    assert rows[0]["reason"] == "systemctl: gave no answer within the time"


def test_the_limits_of_a_running_process_are_those_it_has() -> None:
    program = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 300)); print(); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", f"{program}"], stdin=-1, stdout=-1) as child:
        assert child.stdout is not None and child.stdout.readline()
        found, missing = _limits.processes(scene(Host(), processes=(str(child.pid), "no-such-process")))
        child.communicate(b"")
    assert found["limits"]["nofile"] == {"soft": 256, "hard": 300}
    assert (missing["pid"], missing["reason"]) == (None, "no-such-process: no process has this name")

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits of logins: normal forms, refusals, the coupling with fs.nr_open, other people's lines."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

from ..machine import Box, build, inform, live, picture, sysctl, tune

OURS = "etc/security/limits.d/zz-gpu-fleet-logins.conf"
TREE = {"/etc/pam.d/common-session": "session required pam_limits.so\n", "/etc/security/limits.conf": "# none\n"}


@pytest.fixture
def host(tmp_path: Path) -> Box:
    return build(tmp_path, TREE)


def limit(domain: str, item: str, value: Any, kind: str = "-") -> dict[str, Any]:
    return {"domain": domain, "type": kind, "item": item, "value": value}


def logins(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"name": "logins", "limits": list(rows)}


def refused(host: Box, *sets: dict[str, Any], **params: Any) -> str:
    """Return the sentence of a refusal that came before the first write."""
    first = picture(host)
    for check in (True, False):
        with pytest.raises(TuningError) as caught:
            tune(host, *sets, check=check, **params)
    assert picture(host) == first
    return str(caught.value)


def test_f11_a_preview_makes_neither_file_nor_folder(host: Box, tmp_path: Path) -> None:
    first, wanted = picture(host), logins(limit("@ml", "memlock", "unlimited"))
    preview = tune(host, wanted, check=True)
    assert preview["changed"] and "+" not in preview["diff"][1]["before"]
    assert "@ml hard memlock unlimited\n@ml soft memlock unlimited\n" in preview["diff"][1]["after"]
    assert picture(host) == first and not (tmp_path / "etc/security/limits.d").exists()
    tune(host, wanted)
    place = tmp_path / OURS
    assert place.read_text().splitlines()[1:] == ["@ml hard memlock unlimited", "@ml soft memlock unlimited"]
    assert place.stat().st_mode & 0o7777 == 0o644
    assert inform(host, wanted)["in_sync"] and not tune(host, wanted)["changed"]
    tune(host, logins(), state="absent")
    assert picture(host) == first


@pytest.mark.parametrize("value", ["unlimited", "infinity", "-1", -1])
def test_without_limit_has_one_spelling(host: Box, tmp_path: Path, value: Any) -> None:
    tune(host, logins(limit("*", "memlock", value)))
    assert "* hard memlock unlimited" in (tmp_path / OURS).read_text()
    assert not tune(host, logins(limit("*", "memlock", "unlimited")))["changed"]


def test_a_nice_of_minus_one_is_a_number(host: Box, tmp_path: Path) -> None:
    tune(host, logins(limit("@ml", "nice", "-1", "soft")))
    assert "@ml soft nice -1\n" in (tmp_path / OURS).read_text()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (limit("*", "nofile", "unlimited"), "nofile: unlimited makes logins fail"),
        (limit("*", "nofile", "many"), "neither a number nor unlimited"),
        (limit("*", "nice", "20"), "from -20 to 19"),
        (limit("*", "rtprio", "unlimited"), "from 0 to 99"),
        (limit("a b", "nproc", "1"), "limits domain 'a b'"),
        (limit("#x", "nproc", "1"), "limits domain '#x'"),
        (limit("*", "nproc", True), "boolean"),
    ],
)
def test_limits_that_cannot_be_meant(host: Box, row: dict[str, Any], said: str) -> None:
    assert said in refused(host, logins(row))


def test_soft_above_hard_is_refused(host: Box) -> None:
    rows = (limit("*", "nofile", "2000", "soft"), limit("*", "nofile", "1000", "hard"))
    assert "the soft limit 2000 is above the hard limit 1000" in refused(host, logins(*rows))
    rows = (limit("*", "memlock", "unlimited", "soft"), limit("*", "memlock", "1000", "hard"))
    assert "above" in refused(host, logins(*rows))
    assert "twice" in refused(host, logins(limit("*", "nproc", "1"), limit("*", "nproc", "2", "hard")))


# -- F10: nobody can log in any more -----------------------------------------------------------------------------------


def test_f10_above_nr_open_is_refused(host: Box) -> None:
    sentence = refused(host, logins(limit("*", "nofile", "2000000"), limit("root", "nofile", "2000000")))
    assert "2000000" in sentence and "1048576" in sentence and "fs.nr_open" in sentence


def test_f10_nr_open_first_and_backwards_on_rollback(host: Box, tmp_path: Path) -> None:
    first = picture(host)
    wanted = (sysctl("memory", fs__nr_open="2097152"), logins(limit("*", "nofile", "2000000")))
    steps = [row["key"] for row in tune(host, *wanted)["changes"]]
    assert steps.index("fs.nr_open") < steps.index(f"/{OURS}")
    assert live(host, "/proc/sys/fs/nr_open") == "2097152" and inform(host, *wanted)["in_sync"]
    back = [row["key"] for row in tune(host, *wanted, state="absent")["changes"]]
    assert back.index(f"/{OURS}") < back.index("fs.nr_open")
    assert picture(host) == first


def test_f10_nr_open_that_a_limit_still_needs_is_not_given_back(host: Box) -> None:
    tune(host, sysctl("memory", fs__nr_open="2097152"), logins(limit("*", "nofile", "2000000")))
    assert "2000000" in refused(host, sysctl("memory"), state="absent")
    assert "2000000" in refused(host, sysctl("memory", fs__nr_open="1048576"))


def test_f10_nr_open_that_cannot_be_raised(host: Box) -> None:
    host.read_only = ("/proc/sys/fs",)
    wanted = (sysctl("memory", fs__nr_open="2097152"), logins(limit("*", "nofile", "2000000")))
    assert "1048576" in refused(host, *wanted)


@pytest.mark.parametrize(("most", "applies"), [(20000, False), (None, True)])
def test_limits_that_nobody_may_have_would_end_every_login(
    host: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int | None, applies: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (1024, 20000))
    host.most = most
    result = tune(host, logins(limit("*", "nofile", "30000"), limit("root", "nofile", "10000")))
    lines = (tmp_path / OURS).read_text()
    assert ("* hard nofile 30000" in lines) == applies and "root hard nofile 10000" in lines
    assert ("every login would fail" in str(result["not_applicable"])) != applies


def test_what_a_process_may_have_is_found_by_trying(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert Host(str(tmp_path)).allows(resource.RLIMIT_NOFILE, hard)
    assert not Host(str(tmp_path)).allows(resource.RLIMIT_NOFILE, 1 << 40)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


# -- other people's lines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "domain", "wins"),
    [
        ("/etc/security/limits.conf", "* hard nofile 1024\n", "*", None),
        ("/etc/security/limits.d/90-nofile.conf", "* - nofile 1024 # theirs\n", "*", None),
        ("/etc/security/limits.d/90-nofile.conf", "alice hard nofile 1024\n", "*", "theirs"),
        ("/etc/security/limits.d/90-nofile.conf", "@ml - nofile 1024\n", "*", "theirs"),
        ("/etc/security/limits.d/90-nofile.conf", "@ml hard nofile 65536\n", "*", None),
        ("/etc/security/limits.d/90-nofile.conf", "root hard nofile 1024\n", "*", None),
        ("/etc/security/limits.d/90-nofile.conf", "alice hard nproc 1024\n", "*", None),
        ("/etc/security/limits.d/90-nofile.conf", "#alice hard nofile 1024\n", "*", None),
        ("/etc/security/limits.d/90-nofile.txt", "alice hard nofile 1024\n", "*", None),
        ("/etc/security/limits.d/90-nofile.conf", "alice hard nofile 1024\n", "@ml", "theirs"),
        ("/etc/security/limits.d/90-nofile.conf", "bob hard nofile 1024\n", "@ml", "theirs"),
        ("/etc/security/limits.d/90-nofile.conf", "carol hard nofile 1024\n", "@ml", None),
        ("/etc/security/limits.d/90-nofile.conf", "* hard nofile 1024\n", "@ml", None),
    ],
)
def test_more_specific_lines_are_named(tmp_path: Path, path: str, text: str, domain: str, wins: str | None) -> None:
    people = {"/etc/group": "ml:x:200:alice\n", "/etc/passwd": "bob:x:7:200::/:/bin/sh\ncarol:x:8:8::/:/bin/sh\n"}
    host = build(tmp_path, {**TREE, **people, path: text})
    wanted = logins(limit(domain, "nofile", "65536"))
    result = tune(host, wanted)
    found = {row["wins_at_boot"] for row in result["conflicts"]}
    assert found == ({wins} if wins else set())
    if wins:
        assert all(f"{path}:1" in row["source"] for row in result["conflicts"])
        assert any("more specific line wins" in text for text in result["warned"])
        assert {row["outcome"] for row in result["settings"]} >= {"conflict"}


def test_a_later_line_of_the_same_domain_is_refused(tmp_path: Path) -> None:
    late = "/etc/security/limits.d/zzz-late.conf"
    host = build(tmp_path, {**TREE, late: "* hard nofile 1024\n"})
    assert f"{late}:1" in refused(host, logins(limit("*", "nofile", "65536")))


def test_limits_that_stop_cuda_or_forbid_debugging_are_warned_of(host: Box) -> None:
    warned = tune(host, logins(limit("*", "as", "1000000"), limit("*", "core", "0")))["warned"]
    assert any("CUDA" in text for text in warned) and any("core dump" in text for text in warned)


def test_a_host_whose_logins_do_not_use_pam_limits_says_so(tmp_path: Path) -> None:
    host = build(tmp_path, {**TREE, "/etc/pam.d/common-session": "session required pam_unix.so\n"})
    assert any("pam_limits" in text for text in tune(host, logins(limit("*", "nproc", "9")))["warned"])

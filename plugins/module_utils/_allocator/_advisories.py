# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Match the facts against the table of known bad combinations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _configuration
from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator._table import ADVISORIES, Advisory, When

HOST = "host"
UNREAD = "unread"  # in a view: how the names begin of which nothing is known, since their source failed
STEER = ("variable.", "tunable.", "accepts.", "preload.")
ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "below": operator.lt,
    "at_least": operator.ge,
    "at_most": operator.le,
}
Facts = Mapping[str, Any]  # by name; a name that is left out is known to be absent, and None is not known


def match(facts: Mapping[str, Any], kernel: str, table: Sequence[Advisory] = ADVISORIES) -> dict[str, Any]:
    """Return the advisories that hold, and those that only a fact that could not be read keeps from being judged."""
    found: list[dict[str, Any]] = []
    undecided: list[dict[str, Any]] = []
    for scope, subject, view in views(facts, kernel):
        for advisory in (one for one in table if _scope(one) == scope):
            answers = [holds(when, view) for when in advisory.when]
            names = [when.fact for when in advisory.when]
            if all(answers):
                observed = {name: view[name] for name in names if name in view}
                found.append({**_shown(advisory), "subject": subject, "observed": observed})
            elif False not in answers:
                unread = [name for name, answer in zip(names, answers) if answer is None]
                undecided.append({"name": advisory.name, "subject": subject, "unread": unread})
    return {"advisories": found, "undecided_advisories": undecided}


def _scope(advisory: Advisory) -> str:
    """Return what an advisory is judged for: the host once, or each torch, or each control group."""
    heads = {when.fact.partition(".")[0] for when in advisory.when}
    return "torch" if heads & {"torch", "option"} else "group" if "group" in heads else HOST


def _shown(advisory: Advisory) -> dict[str, str]:
    fields = ("name", "severity", "problem", "action", "source")
    return {field: getattr(advisory, field) for field in fields}


def holds(when: When, view: Facts) -> bool | None:
    """Tell whether a condition holds; None where its fact could not be read."""
    if when.fact not in view:
        return None if when.fact.startswith(view.get(UNREAD, ())) else when.operator == "absent"
    fact = view[when.fact]
    if fact is None:
        return None
    if when.operator in ("set", "absent"):
        return when.operator == "set"
    if when.operator in ("is", "not"):
        return bool((fact == when.value) == (when.operator == "is"))
    return _compare(when, fact)


def _compare(when: When, fact: Any) -> bool | None:
    """Compare numbers, or versions number by number; `series` is a version up to the numbers that are given."""
    if fact == "unlimited":
        return when.operator == "at_least"
    if isinstance(when.value, int):
        return ORDER[when.operator](fact, when.value)
    has, wanted = _configuration.version(str(fact)), _configuration.version(str(when.value))
    if has is None or wanted is None:
        return None
    if when.operator == "series":
        return has[: len(wanted)] == wanted
    return ORDER[when.operator](has, wanted)


def views(facts: Mapping[str, Any], kernel: str) -> Iterator[tuple[str, str, Facts]]:
    """Yield scope, subject and the facts under the names of the table."""
    host = _host(facts, kernel)
    yield HOST, HOST, host
    cgroup = facts.get("cgroup")
    for place in [cgroup["caller"], *cgroup["slices"]] if cgroup else [{"name": "caller", "limits": None}]:
        yield "group", str(place["name"]), {**host, **_group(place)}
    for row in facts.get("torch") or ():
        if row.get("folder"):
            yield "torch", str(row["interpreter"]), {**host, **_torch(row)}


def _group(place: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of a control group; one that no level sets is absent."""
    names = ("memory_max", "memory_high")
    if place["limits"] is None:
        return {f"group.{name}": None for name in names}
    found = {name: place["limits"][name]["value"] for name in names}
    return {f"group.{name}": value for name, value in found.items() if value is not None}


def _host(facts: Mapping[str, Any], kernel: str) -> dict[str, Any]:
    host, malloc = facts.get("host") or {}, facts.get("malloc") or {}
    view: dict[str, Any] = {
        UNREAD: STEER if facts.get("malloc") is None else (),
        "kernel": kernel,
        "overcommit": _at(host, "overcommit", "mode"),
        "shm.size": _at(host, "shm", "size"),
        "swap": _at(host, "memory", "swap_total"),
    }
    if _at(host, "thp", "available") is False:  # a kernel without them gives none, whatever is asked for
        view["thp.enabled"] = "never"
    else:
        view.update({f"thp.{name}": _at(host, "thp", name) for name in ("enabled", "huge_page")})
    scope = _at(host, "ptrace_scope", "value")
    if scope is not None or not str(_at(host, "ptrace_scope", "reasons", "value")).endswith("is missing"):
        view["ptrace_scope"] = scope
    view.update(_limits(facts), **_variables(malloc))
    missing = [one["path"] for one in malloc.get("preloads", ()) if one["exists"] is False]
    if missing:
        view["preload.missing"] = ", ".join(missing)
    return view


def _at(facts: Any, *way: str) -> Any:
    for name in way:
        facts = facts.get(name) if isinstance(facts, Mapping) else None
    return facts


def _limits(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of the first login; where no line sets one, the caller, who came by a login too, stands for it.

    No limit on address space is absence.
    """
    if facts.get("limits") is None:
        return {"login.nofile": None, "login.as": None}
    logins = _at(facts, "limits", "logins")
    login, caller = logins[0]["limits"] if logins else {}, _at(facts, "limits", "caller", "limits")
    files = _at(login, "nofile", "soft")
    spaces = [_at(login, "as", "soft"), _at(login, "as", "hard"), _at(caller, "as", "soft")]
    numbers = [space for space in spaces if isinstance(space, int)]
    view = {"login.nofile": _at(caller, "nofile", "soft") if files is None else files}
    return {**view, "login.as": min(numbers)} if numbers else view


def _variables(malloc: Mapping[str, Any]) -> dict[str, Any]:
    view: dict[str, Any] = {}
    accepted = _at(malloc, "glibc", "tunables")
    for row in reversed(malloc.get("variables") or ()):  # the first source wins
        view[f"variable.{row['name']}"] = row["value"]
    for pair in filter(None, view.get("variable.GLIBC_TUNABLES", "").split(":")):
        name, _equals, value = pair.partition("=")
        view[f"tunable.{name}"] = value
        view[f"accepts.{name}"] = None if accepted is None else name in accepted
    return view


def _torch(row: Mapping[str, Any]) -> dict[str, Any]:
    reasons = row.get("reasons", {})
    view = {f"torch.{name}": row.get(name) for name in ("version", "nccl", "cudnn", "cpu_tensors")}
    view["torch.malloc"] = _at(row, "malloc", "name")
    for name in ("cuda", "hip"):  # built without is absence
        if row.get(name) is not None or "built without" not in reasons.get(name, ""):
            view[f"torch.{name}"] = row.get(name)
    if row.get("cuda") is None and "torch.cuda" not in view:
        view.pop("torch.nccl"), view.pop("torch.cudnn")
    allocator = row.get("allocator") or {}
    if allocator.get("backend") is not None:  # a build without GPUs reads no configuration
        view["torch.backend"] = allocator["backend"]
        view.update({f"option.{name}": value for name, value in (allocator.get("options") or {}).items()})
        if allocator.get("valid") is not None:
            view["torch.configuration_valid"] = allocator["valid"]
    if "torch.nccl" in view and row.get("nccl_required"):
        view["torch.nccl_differs"] = _differs(row["nccl"], row["nccl_required"])
    return view


def _differs(has: str | None, required: str) -> bool | None:
    """Tell whether a version is another one than required, which may have fewer numbers; None where it is unknown."""
    numbers, least = _configuration.version(has), _configuration.version(required)
    return None if numbers is None or least is None else numbers[: len(least)] != least

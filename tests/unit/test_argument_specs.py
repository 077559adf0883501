# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a role documents is what it does: its argument specs and its defaults are the same list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES_FOLDER = Path(__file__).resolve().parents[2] / "roles"
ROLES = sorted(path.name for path in ROLES_FOLDER.iterdir() if path.is_dir())
TUNING = ("main", "declare", "audit", "rollback")
OTHERS = {
    "validate_memory": ("main", "probe", "judge"),  # it tunes nothing
    "tune_slices": (*TUNING, "prove"),
}


def _entry_points(role: str) -> tuple[str, ...]:
    return OTHERS.get(role, TUNING)


CASES = [pytest.param(role, entry, id=f"{role}-{entry}") for role in ROLES for entry in _entry_points(role)]


def _load(role: str, *parts: str) -> Any:
    return yaml.safe_load(ROLES_FOLDER.joinpath(role, *parts).read_text(encoding="utf-8"))


def _options(role: str, entry: str) -> dict[str, dict[str, Any]]:
    return _load(role, "meta", "argument_specs.yml")["argument_specs"][entry]["options"]


def _flatten(options: dict[str, dict[str, Any]], prefix: str = "") -> dict[str, dict[str, Any]]:
    """All options with their sub-options, by dotted name."""
    flat = {}
    for name, option in options.items():
        flat[prefix + name] = option
        flat.update(_flatten(option.get("options", {}), f"{prefix}{name}."))
    return flat


def test_there_are_roles() -> None:
    assert ROLES


@pytest.mark.parametrize("role", ROLES)
def test_entry_points_are_the_documented_ones(role: str) -> None:
    documented = _load(role, "meta", "argument_specs.yml")["argument_specs"]
    files = {path.stem for path in (ROLES_FOLDER / role / "tasks").glob("*.yml")}
    assert sorted(documented) == sorted(_entry_points(role))
    assert files >= set(_entry_points(role))
    assert all(section.get("short_description") for section in documented.values())


@pytest.mark.parametrize(("role", "entry"), CASES)
def test_options_and_their_defaults_are_those_of_the_role(role: str, entry: str) -> None:
    documented = {name: option.get("default") for name, option in _options(role, entry).items()}
    assert documented == _load(role, "defaults", "main.yml")


@pytest.mark.parametrize(("role", "entry"), CASES)
def test_every_option_has_a_type_and_a_description(role: str, entry: str) -> None:
    bare = [
        name
        for name, option in _flatten(_options(role, entry)).items()
        if not option.get("type") or not option.get("description") or option["type"] == "raw"
    ]
    assert bare == []


@pytest.mark.parametrize("role", ROLES)
def test_every_variable_starts_with_the_name_of_the_role(role: str) -> None:
    foreign = [name for name in _load(role, "defaults", "main.yml") if not name.startswith(f"{role}_")]
    assert foreign == []

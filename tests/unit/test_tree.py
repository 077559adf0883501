# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""House rules about the files themselves: licence lines, sizes, and that the project speaks of itself alone."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_SUFFIXES = {".py", ".yml", ".yaml", ".sh", ".cfg", ".toml", ".in"}
SPDX = "SPDX-License-Identifier: GPL-3.0-or-later"
MAX_FILE, MAX_FUNCTION, MAX_README, MAX_DEFAULTS = 260, 45, 150, 60
MAX_TABLE = 600  # a file of tests is a table, and one kind's table stays in one place
DOCUMENTATION = {"DOCUMENTATION", "EXAMPLES", "RETURN"}

# Folders of one machine on which somebody happened to work.
WORKSHOP = re.compile(
    "|".join((r"/(?:work|farm)/(?:main|shared|\.)", r"\.(?:library)/", r"/tmp/(?:lab|brief)/", r"\.(?:pyenv)/"))
)


def _files() -> list[Path]:
    """Everything that is part of the project: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


FILES = _files()
PYTHON = [path for path in FILES if path.suffix == ".py"]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _is_source(path: Path) -> bool:
    """Generated changelogs and recorded outputs are data."""
    if path.is_relative_to(ROOT / "changelogs") and path.name != "config.yaml":
        return False
    content = path.read_bytes()
    return bool(content) and (path.suffix in SOURCE_SUFFIXES or content.startswith(b"#!"))


def _length(node: ast.AST) -> int:
    return getattr(node, "end_lineno", 0) - getattr(node, "lineno", 0) + 1


def _documentation_lines(tree: ast.AST) -> int:
    """Lines of docstrings and of the documentation blocks of a module."""
    lines = 0
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            lines += _length(node.body[0])
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in DOCUMENTATION
        ):
            lines += _length(node)
    return lines


def oversized(source: str, max_file: int = MAX_FILE) -> list[str]:
    """What is too long in one Python file, its documentation not counted."""
    tree = ast.parse(source)
    found = []
    total = len(source.splitlines()) - _documentation_lines(tree)
    if total > max_file:
        found.append(f"file: {total} lines, at most {max_file} were expected")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            lines = _length(node) - _documentation_lines(node)
            if lines > MAX_FUNCTION:
                found.append(f"{node.name}: {lines} lines, at most {MAX_FUNCTION} were expected")
    return found


def test_the_list_of_files_is_not_empty() -> None:
    assert len(FILES) > 10
    assert PYTHON


@pytest.mark.parametrize("path", [path for path in FILES if _is_source(path)], ids=_name)
def test_source_files_name_their_licence(path: Path) -> None:
    assert SPDX in path.read_text(encoding="utf-8")[:600]


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_no_file_names_a_folder_of_one_machine(path: Path) -> None:
    assert WORKSHOP.findall(path.read_text(encoding="utf-8", errors="replace")) == []


@pytest.mark.parametrize("path", PYTHON, ids=_name)
def test_python_stays_short(path: Path) -> None:
    max_file = MAX_TABLE if path.name.startswith("test_") else MAX_FILE
    assert oversized(path.read_text(encoding="utf-8"), max_file) == []


def test_long_python_is_noticed() -> None:
    code, words = "    x = 1\n" * (MAX_FUNCTION + 1), "words\n" * MAX_FILE
    assert len(oversized(f"def f():\n{code}")) == 1
    assert len(oversized(f'def f():\n    """{words}    """\n')) == 0
    assert len(oversized("x = 1\n" * (MAX_FILE + 1))) == 1


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README


@pytest.mark.parametrize("path", sorted(ROOT.glob("roles/*/defaults/main.yml")), ids=_name)
def test_defaults_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_DEFAULTS

# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run ansible-test sanity on a copy of the tree, where ansible-test finds what it wants."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".ansible" / "sanity"
NOTHING_RAN = "All targets skipped"
VERSIONED = re.compile(r"python3\.\d+")
MISSING_BOOTSTRAP = re.compile(r"manually downloaded and saved to: (?P<path>\S+\.py)")

# What ansible-test wants from the file that it could not download: pip in an environment made without it.
BOOTSTRAP = """\
import subprocess, sys
subprocess.check_call([sys.executable, "-m", "ensurepip"])
words = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
sys.exit(subprocess.call([sys.executable, "-m", "pip", "install", *words]))
"""


def copy_tree(target: Path) -> None:
    """Copy what git tracks or would track: ansible-test skips all in an ignored folder, and refuses a linked one."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    subprocess.run(["git", "init", "--quiet"], cwd=target, check=True)
    subprocess.run(["git", "add", "--all"], cwd=target, check=True)


def starts(python: Path) -> bool:
    """Whether it is a Python that runs: a version manager's stand-in for one that is not chosen does not."""
    quiet = subprocess.DEVNULL
    return subprocess.run([python, "-c", ""], stdout=quiet, stderr=quiet, check=False).returncode == 0


def working_path(path: str) -> str:
    """Leave out the folders that hold a versioned Python which does not start: ansible-test would run each and stop."""
    folders = [folder for folder in path.split(os.pathsep) if folder]
    pythons = {
        name: [path for path in Path(name).glob("python3.*") if VERSIONED.fullmatch(path.name)] for name in folders
    }
    return os.pathsep.join(name for name in folders if all(starts(python) for python in pythons[name]))


def prepare_home() -> dict[str, str]:
    """Make a home for ansible-test's environments, with the caller's settings for pip, which it does not pass on."""
    (HOME / ".config").mkdir(parents=True, exist_ok=True)
    (HOME / ".pip").mkdir(exist_ok=True)
    theirs = Path("~/.config/pip").expanduser()
    if theirs.is_dir() and not (HOME / ".config" / "pip").exists():
        (HOME / ".config" / "pip").symlink_to(theirs)
    options = {key[4:].lower().replace("_", "-"): value for key, value in os.environ.items() if key.startswith("PIP_")}
    lines = ["[global]", *(f"{name} = {value}" for name, value in sorted(options.items()))]
    (HOME / ".pip" / "pip.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {**os.environ, "HOME": str(HOME), "PATH": working_path(os.environ["PATH"])}


def run_sanity(tree: Path, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Run it with its output shown and kept."""
    command = ["ansible-test", "sanity", "--color", "no", *arguments]
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        lines = []
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
    return process.returncode, "".join(lines)


def provide_bootstrap(tree: Path, environment: dict[str, str]) -> None:
    """Try one test that needs an environment; only where its pip bootstrap cannot be had, put ours in that place."""
    missing = MISSING_BOOTSTRAP.search(run_sanity(tree, environment, "--test", "yamllint")[1])
    if missing:
        print(f"pip bootstrap: cannot be downloaded here, ensurepip takes its place in {missing['path']}", flush=True)
        Path(missing["path"]).write_text(BOOTSTRAP, encoding="utf-8")


def main() -> int:
    """Exit as ansible-test does, and as failed where it tested nothing."""
    environment = prepare_home()
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-sanity-") as folder:
        tree = Path(folder) / "ansible_collections" / "gpu_fleet" / "node"
        tree.mkdir(parents=True)
        copy_tree(tree)
        provide_bootstrap(tree, environment)
        status, output = run_sanity(tree, environment, *sys.argv[1:])
    if NOTHING_RAN in output:
        print("sanity: ansible-test skipped every target, at least one was expected to be tested")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())

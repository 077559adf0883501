# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the test hosts from Debian packages: a root tree, a container image and the disk of a virtual machine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

SUITE = "bookworm"
CONTAINER_IMAGE = "localhost/gpu-fleet-node"
DISK_SIZE = "4G"
RECIPE = Path(__file__).resolve().parent / "recipe"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "lab"

# Each tool with the Debian package that brings it.
CONTAINER_TOOLS = {"podman": "podman", "runc": "runc", "newuidmap": "uidmap", "ssh": "openssh-client"}
MACHINE_TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "mke2fs": "e2fsprogs", "ssh": "openssh-client"}


def recipe_key(recipe: Path, public_key: bytes) -> str:
    """Hash what decides the image's content: a changed recipe gets a new image, an unchanged one costs nothing."""
    digest = hashlib.sha256(f"{SUITE} {DISK_SIZE} ".encode() + public_key)
    for path in sorted(recipe.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def packages(recipe: Path) -> list[str]:
    """Read the package names of the recipe."""
    lines = (recipe / "packages").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def run(*command: str | Path) -> None:
    """Run a command and end in one sentence when it fails."""
    try:
        subprocess.run([str(word) for word in command], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{command[0]} did not finish: {error}") from error


def ensure_tools(tools: dict[str, str]) -> None:
    """Install the Debian packages of the tools that are missing, or say which ones are."""
    os.environ["PATH"] += os.pathsep + "/usr/sbin" + os.pathsep + "/sbin"
    missing = sorted({package for tool, package in tools.items() if not shutil.which(tool)})
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SystemExit(f"the test lab needs these Debian packages or their like: {' '.join(missing)}")
    run("apt-get", "-q", "update")
    run("apt-get", "-q", "-y", "--no-install-recommends", "install", *missing)


@contextlib.contextmanager
def _cache() -> Iterator[None]:
    """Hold the cache for one builder at a time; the folder hides itself from git."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n", encoding="ascii")
    with open(CACHE / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def key() -> Path:
    """Return the private key that opens every test host, made once."""
    path = CACHE / "key"
    with _cache():
        if not path.exists():
            ensure_tools({"ssh-keygen": "openssh-client"})
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpu-fleet-lab", "-f", path)
    return path


def build() -> Path:
    """Return the folder of the current image with `root.tar` in it, made once for each recipe."""
    public = key().with_suffix(".pub")
    folder = CACHE / recipe_key(RECIPE, public.read_bytes())
    with _cache():
        folder.mkdir(exist_ok=True)
        if not (folder / "root.tar").exists():
            _debootstrap(folder, public)
    return folder


def _debootstrap(folder: Path, public: Path) -> None:
    """Make `root.tar` under a temporary name, so that a broken build is never taken for an image."""
    if os.geteuid() != 0:
        raise SystemExit("the test lab must be built by root: files of the test hosts belong to several users")
    ensure_tools({"mmdebstrap": "mmdebstrap"})
    part = folder / "root.part.tar"
    run(
        "mmdebstrap", "--quiet", "--mode=root", "--variant=apt", f"--include={','.join(packages(RECIPE))}",
        f"--customize-hook={RECIPE / 'setup'}", f"--customize-hook=upload {public} /root/.ssh/authorized_keys",
        SUITE, part,
    )  # fmt: skip
    part.rename(folder / "root.tar")


def container() -> str:
    """Import the image into podman and return its name; the tag is the recipe's key."""
    ensure_tools(CONTAINER_TOOLS)
    folder = build()
    name = f"{CONTAINER_IMAGE}:{folder.name}"
    if subprocess.run(["podman", "image", "exists", name], check=False).returncode != 0:
        run("podman", "import", "--quiet", folder / "root.tar", name)
    run("podman", "tag", name, f"{CONTAINER_IMAGE}:latest")
    return name


def derived(base: str) -> str:
    """Build an Enterprise Linux test host on an image of a registry, or say in one sentence that there is none."""
    ensure_tools(CONTAINER_TOOLS)
    name = f"localhost/gpu-fleet-{re.sub('[^a-z0-9]+', '-', base.lower())}"
    pull = subprocess.run(["podman", "pull", "--quiet", base], check=False, text=True, capture_output=True)
    if pull.returncode != 0:
        reason = pull.stderr.strip().rsplit(": ", 1)[-1] or "podman gave no reason"
        raise SystemExit(f"{base}: the image cannot be pulled here, so its tests did not run ({reason})")
    words = ("--quiet", "--network=host", f"--build-arg=BASE={base}", f"--file={RECIPE.parent / 'Containerfile'}")
    run("podman", "build", *words, f"--tag={name}", key().parent)
    return name


def disk() -> Path:
    """Return the folder with `disk.img`, `vmlinuz` and `initrd.img` beside the root tree."""
    ensure_tools(MACHINE_TOOLS)
    folder = build()
    with _cache():
        if not (folder / "disk.img").exists():
            _make_disk(folder)
    return folder


def _make_disk(folder: Path) -> None:
    """Unpack the root tree, take kernel and initrd out of it, and make a file system of it without mounting one."""
    with tempfile.TemporaryDirectory(dir=folder) as tree:
        run("tar", "-C", tree, "--xattrs", "--xattrs-include=*", "-xpf", folder / "root.tar")
        os.chmod(tree, 0o755)
        for name in ("vmlinuz", "initrd.img"):
            shutil.copy(next(Path(tree, "boot").glob(f"{name}-*")), folder / name)
        (folder / "disk.part").touch()
        run("mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", "-d", tree, folder / "disk.part", DISK_SIZE)
    (folder / "disk.part").rename(folder / "disk.img")

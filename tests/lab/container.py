# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a test host as a container with systemd; it is reached by ssh through `podman exec` and needs no network."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
from collections.abc import Sequence

import hosts
import image

CONTAINERS_CONF = image.CACHE.parents[1] / "molecule" / "containers.conf"
# An ssh server on standard input and output, as root of the container; it wants its folder for privilege separation.
SERVER = "mkdir -p /run/sshd && exec /usr/sbin/sshd -i"
# Without --privileged /sys and /proc/sys are read-only, so that the tests cannot touch the machine below.
CONFINED = (
    "--systemd=always",
    "--cap-add=SYS_ADMIN,SYS_NICE,SYS_RESOURCE,NET_ADMIN",
    "--security-opt=seccomp=unconfined",
)
PRIVILEGED = ("--systemd=always", "--privileged")


def podman_name(name: str) -> str:
    """Name a container so that two checkouts on one machine do not take each other's."""
    return f"{name}-{hashlib.sha256(str(image.CACHE).encode()).hexdigest()[:8]}"


def up(name: str, base: str | None, words: Sequence[str]) -> None:
    """Start a container unless there is one of that name."""
    reference = image.derived(base) if base else image.container()
    own = podman_name(name)
    command = f"env CONTAINERS_CONF='{CONTAINERS_CONF}' podman exec -i {own} sh -c '{SERVER}'"
    hosts.create(name, image.key(), {"ProxyCommand": command})
    if subprocess.run(["podman", "container", "exists", own], check=False).returncode != 0:
        image.run("podman", "run", "--detach", f"--name={own}", f"--hostname={name}", *words, reference, "/sbin/init")


def down(name: str) -> None:
    """Remove a container and what is known about it."""
    image.run("podman", "rm", "--force", "--ignore", "--time", "5", podman_name(name))
    hosts.forget(name)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("image", help="build and import the image, once for each recipe")
    start = verbs.add_parser("up", help="start a container and write its inventory and ssh settings")
    start.add_argument("--image", help="an image of a registry in place of the one built here")
    start.add_argument("--volume", action="append", default=[], help="a folder to show in it, as podman takes it")
    start.add_argument("--privileged", action="store_true", help="let it write the settings of the machine below")
    ready = verbs.add_parser("wait", help="wait until a container has booted")
    ready.add_argument("--limit", type=float, default=120, help="seconds")
    stop = verbs.add_parser("down", help="remove a container and forget it")
    for verb in (start, ready, stop):
        verb.add_argument("name")
    given = parser.parse_args()
    os.environ.setdefault("CONTAINERS_CONF", str(CONTAINERS_CONF))
    if given.verb == "image":
        print(image.container())
    elif given.verb == "up":
        rights = PRIVILEGED if given.privileged else CONFINED
        up(given.name, given.image, [*rights, *(f"--volume={volume}" for volume in given.volume)])
        print(hosts.folder(given.name))
    elif given.verb == "wait":
        hosts.wait(given.name, given.limit)
    else:
        down(given.name)


if __name__ == "__main__":
    main()

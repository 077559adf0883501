# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a test host as a virtual machine with a kernel of its own, under QEMU without hardware help."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import hosts
import image

KERNEL_LINE = "root=/dev/vda rw console=ttyS0 net.ifnames=0 nokaslr mitigations=off quiet"
CGROUP_WORDS = {"v1": "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1", "v2": ""}

# A reboot starts QEMU anew: a guest that is reset in place boots several times slower, on a stale translation cache.
KEEP = 'while [ -e "$0" ]; do "$@" || exit; done'


@dataclass(frozen=True)
class Machine:
    """What a machine is made of; memory and CPUs are those of one NUMA node."""

    name: str
    nodes: int = 2
    cpus: int = 1
    memory: int = 1024
    cgroup: str = "v2"
    append: str = ""
    memoryless: int = 0  # more nodes, with CPUs and without memory


def free_port() -> int:
    """Ask the kernel for a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def numa(machine: Machine) -> list[str]:
    """Give each NUMA node its memory and its CPUs."""
    words = []
    for node in range(machine.nodes):
        first = node * machine.cpus
        words += ["-object", f"memory-backend-ram,id=m{node},size={machine.memory}M"]
        words += ["-numa", f"node,nodeid={node},cpus={first}-{first + machine.cpus - 1},memdev=m{node}"]
    for node in range(machine.nodes, machine.nodes + machine.memoryless):
        first = node * machine.cpus
        words += ["-numa", f"node,nodeid={node},cpus={first}-{first + machine.cpus - 1}"]
    return words


def command(machine: Machine, files: Path, run: Path, port: int) -> list[str]:
    """Compose the QEMU command, of a machine that ends when its guest reboots."""
    sockets = machine.nodes + machine.memoryless
    line = " ".join(f"{KERNEL_LINE} {CGROUP_WORDS[machine.cgroup]} {machine.append}".split())
    return [
        "qemu-system-x86_64", "-name", machine.name, "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
        "-smp", f"{sockets * machine.cpus},sockets={sockets},cores={machine.cpus}",
        "-m", f"{machine.nodes * machine.memory}M", *numa(machine), "-no-reboot",
        "-kernel", str(files / "vmlinuz"), "-initrd", str(files / "initrd.img"), "-append", line,
        "-drive", f"file={run / 'disk.img'},format=raw,if=virtio,cache=unsafe",
        "-netdev", f"user,id=net0,hostfwd=tcp:127.0.0.1:{port}-:22", "-device", "virtio-net-pci,netdev=net0,romfile=",
        "-device", "virtio-rng-pci", "-display", "none", "-pidfile", str(run / "pid"),
        "-chardev", f"file,id=log,path={run / 'serial.log'},append=on", "-serial", "chardev:log",
    ]  # fmt: skip


def pid_of(name: str) -> int | None:
    """Return the process of a machine, None when it does not run; a reused process number is not taken for it."""
    try:
        pid = int((hosts.folder(name) / "pid").read_text(encoding="ascii"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, ValueError):
        return None
    return pid if str(hosts.folder(name) / "pid") in words else None


def up(machine: Machine) -> None:
    """Start a machine, with a copy of the disk, unless it runs."""
    if pid_of(machine.name):
        return
    hosts.forget(machine.name)
    files, port = image.disk(), free_port()
    run = hosts.create(machine.name, image.key(), {"HostName": "127.0.0.1", "Port": str(port)})
    image.run("cp", "--sparse=always", "--reflink=auto", files / "disk.img", run / "disk.img")
    (run / "keep").touch()
    with open(run / "qemu.log", "wb") as log:
        words = ["sh", "-c", KEEP, str(run / "keep"), *command(machine, files, run, port)]
        keeper = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    while not pid_of(machine.name):
        time.sleep(0.2)
        if keeper.poll() is not None:
            raise SystemExit(f"{machine.name} did not start: {(run / 'qemu.log').read_text(errors='replace').strip()}")


def down(name: str, grace: float) -> None:
    """Let a machine power itself off, and end it when it has not done so in time."""
    (hosts.folder(name) / "keep").unlink(missing_ok=True)
    end = time.monotonic() + grace
    if grace and pid_of(name):
        hosts.ssh(name, "systemctl poweroff", grace)
    while (pid := pid_of(name)) and time.monotonic() < end:
        time.sleep(0.5)
    if pid:
        os.kill(pid, signal.SIGKILL)
    hosts.forget(name)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("image", help="build the disk, once for each recipe")
    start = verbs.add_parser("up", help="start a machine and write its inventory and ssh settings")
    start.add_argument("--nodes", type=int, default=Machine.nodes, help="NUMA nodes")
    start.add_argument("--cpus", type=int, default=Machine.cpus, help="CPUs of each node")
    start.add_argument("--memory", type=int, default=Machine.memory, help="MiB of each node")
    start.add_argument("--cgroup", choices=sorted(CGROUP_WORDS), default=Machine.cgroup)
    start.add_argument("--memoryless", type=int, default=0, help="more nodes, without memory")
    start.add_argument("--append", default="", help="more words for the kernel line")
    ready = verbs.add_parser("wait", help="wait until a machine has booted")
    ready.add_argument("--limit", type=float, default=600, help="seconds")
    stop = verbs.add_parser("down", help="power a machine off and forget it")
    stop.add_argument("--grace", type=float, default=60, help="seconds before it is ended by force")
    for verb in (start, ready, stop):
        verb.add_argument("name")
    return parser.parse_args()


def main() -> None:
    """Do what the command line says."""
    given = vars(arguments())
    verb = given.pop("verb")
    if verb == "image":
        print(image.disk())
    elif verb == "up":
        up(Machine(**given))
        print(hosts.folder(given["name"]))
    elif verb == "wait":
        hosts.wait(given["name"], given["limit"])
    else:
        down(given["name"], given["grace"])


if __name__ == "__main__":
    main()

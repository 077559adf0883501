# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Talk to the systemd manager of a live host through systemctl."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host

MANAGER = "manager"  # in place of a unit: the defaults of the manager itself
SPECIMEN = "fleetspecimen"  # stands for the units that a prefix or a template will have
RELOAD = ("systemctl", "daemon-reload")
CONTAINER = re.compile(r"docker|libpod|containerd|crio|kubepods|lxc|garden|buildkit")


def show(host: Host, unit: str, properties: Sequence[str]) -> dict[str, str] | None:
    """Return properties as the manager has them, those it does not know left out; None where no manager answers."""
    command = ["systemctl", "show", f"--property={','.join(sorted(properties))}"]
    text = host.commands.ask(command if unit == MANAGER else [*command, "--", specimen(unit)])
    if text is None:
        return None
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def specimen(unit: str) -> str:
    """Return the unit to ask about: a prefix (user-.slice) or a template (job@.service) has no values of its own."""
    stem, dot, suffix = unit.rpartition(".")
    return f"{stem}{SPECIMEN}{dot}{suffix}" if shared(unit) else unit


def shared(unit: str) -> bool:
    """Tell whether a name stands for many units, by a prefix or a template."""
    stem = unit.rpartition(".")[0]
    return stem.endswith("@") or (stem.endswith("-") and stem != "-")


def loaded(host: Host, unit: str, properties: Sequence[str]) -> list[dict[str, str]]:
    """Return properties of each loaded unit of a prefix or template."""
    stem, dot, suffix = unit.rpartition(".")
    wanted = f"--property={','.join(sorted(properties))}"
    text = host.commands.ask(["systemctl", "show", wanted, "--", f"{stem}*{dot}{suffix}"]) or ""
    blocks = text.split("\n\n")
    return [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]


def set_property(host: Host, unit: str, assignment: str) -> None:
    """Give a unit a property until the next boot; neither a reload nor a unit file is needed."""
    host.commands.run(["systemctl", "set-property", "--runtime", "--", unit, assignment])


def restart(host: Host, unit: str) -> None:
    """Start a running service again; one that does not run stays as it is."""
    host.commands.run(["systemctl", "try-restart", "--", unit])


def reload(host: Host) -> None:
    """Make the manager read its files again, once after the last change of a file."""
    host.commands.once(RELOAD)


def gpu_container(host: Host) -> str | None:
    """Return how a process of a container that has NVIDIA devices is found on this host, or None.

    The daemons of the container engines have names of that kind too; what is in a container has mounts of its own.
    """
    own = host.target("/proc/1/ns/mnt")
    for name in host.names("/proc"):
        if not name.isdigit() or host.target(f"/proc/{name}/ns/mnt") == own:
            continue
        group = host.glance(f"/proc/{name}/cgroup") or ""
        if CONTAINER.search(group) and host.mode(f"/proc/{name}/root/dev/nvidiactl") is not None:
            return f"process {name} in {group.strip().splitlines()[-1].split(':')[-1]}"
    return None

# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a host starts, as far as it matters to files that are read at boot."""

from __future__ import annotations

from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host

# sd_booted(3) looks for this folder; an image is told by the program that it will start.
RUNNING = "/run/systemd/system"
PROGRAMS = ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")
SYSCTL_SERVICES = ("/etc/init.d/procps", "/etc/init.d/sysctl")


def systemd(host: Host) -> bool:
    """Tell whether systemd is what starts this host."""
    return any(host.mode(path) is not None for path in ((RUNNING,) if host.live else PROGRAMS))


def sysctl_service(host: Host) -> bool:
    """Tell whether another init runs `sysctl --system` at boot."""
    return any(host.mode(path) is not None for path in SYSCTL_SERVICES)

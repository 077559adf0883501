# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options that every module of the tuning engine takes."""

from __future__ import annotations


class ModuleDocFragment:
    """Document `sets` and `root` once."""

    DOCUMENTATION = r"""
options:
  sets:
    description:
      - The sets of this call, one transaction on the host for all of them.
      - What a set declares is the whole truth for its name. A setting that it does not declare any more gets its
        original back.
      - Sets that are not named here are left alone.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description:
          - The name of the set, of letters, digits and underscores. It becomes part of the names of our files.
        type: str
        required: true
      sysctl:
        description:
          - Kernel values below C(/proc/sys), kept over a reboot by C(/etc/sysctl.d/zz-gpu-fleet-NAME.conf).
        type: list
        elements: dict
        default: []
        suboptions:
          key:
            description:
              - The key as V(vm.swappiness), or with slashes where a component has dots
                (V(net/ipv4/conf/eth0.1/rp_filter)).
              - Write-only keys such as V(vm.drop_caches) are refused, since they can be neither kept nor taken back.
            type: str
            required: true
          value:
            description:
              - The value as the kernel takes it. Blanks and tabs between numbers count as one blank.
              - Booleans, lists, empty values and line breaks are refused.
            type: str
            required: true
          rule:
            description:
              - V(exact) makes the value what it says. V(at_least) raises each number that is lower, and leaves a
                host that has more alone.
            type: str
            choices: [exact, at_least]
            default: exact
          one_way:
            description:
              - Agree that only a reboot takes the value back, as with V(kernel.kexec_load_disabled) or
                V(kernel.yama.ptrace_scope) of 3.
              - Without it such a value is refused.
            type: bool
            default: false
      sysfs:
        description:
          - Attributes below C(/sys), kept over a reboot by C(/etc/tmpfiles.d/00-gpu-fleet-NAME.conf).
        type: list
        elements: dict
        default: []
        suboptions:
          path:
            description:
              - The absolute path of the attribute, without globs.
            type: str
            required: true
          value:
            description:
              - The word or number that is to be in force. A word must be one of those that the attribute offers.
            type: str
            required: true
          rule:
            description:
              - V(exact) makes the value what it says. V(at_least) raises each number that is lower, and leaves a
                host that has more alone.
            type: str
            choices: [exact, at_least]
            default: exact
          when_missing:
            description:
              - The value that holds on a host whose kernel lacks the attribute (V(never) for huge pages). If it is the
                wanted one, such a host is already right; otherwise the setting is not applicable there.
            type: str
      limits:
        description:
          - Limits of logins, kept in C(/etc/security/limits.d/zz-gpu-fleet-NAME.conf) and applied by pam_limits.
            Services
            do not read them.
          - They have no live value. They take effect at the next login.
        type: list
        elements: dict
        default: []
        suboptions:
          domain:
            description:
              - Who has the limit, as in limits.conf(5), V(*), a user, V(@group), V(%group) or a range of ids.
                Neither V(*)
                nor a group reaches root, which needs a line of its own.
            type: str
            required: true
          type:
            description:
              - The limit, V(-) for both.
            type: str
            choices: [soft, hard, "-"]
            default: "-"
          item:
            description:
              - What is limited. A hard V(nofile) above C(fs.nr_open) is refused, since nobody could log in.
            type: str
            required: true
            choices: [as, core, cpu, data, fsize, locks, maxlogins, maxsyslogins, memlock, msgqueue, nice, nofile,
            nproc,
              priority, rss, rtprio, sigpending, stack]
          value:
            description:
              - A number in the unit of limits.conf(5) (KiB for memory), or V(unlimited), V(infinity) or V(-1),
                which are one.
            type: str
            required: true
  root:
    description:
      - The tree to work on. In any other than V(/) (a mounted image) only files are read and written, and nothing
        live is touched.
    type: path
    default: /
"""

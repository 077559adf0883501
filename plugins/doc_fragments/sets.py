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
      units:
        description:
          - Properties of systemd units, kept by one drop-in of ours for each unit,
            C(/etc/systemd/system/UNIT.d/zz-gpu-fleet-NAME-NN.conf), and for the manager by
            C(/etc/systemd/system.conf.d/zz-gpu-fleet-NAME.conf).
          - Properties of a control group are given to a running manager by C(systemctl set-property --runtime), without
            a reload. All others, and those of a prefix such as V(user-.slice), need C(daemon-reload).
          - What has no effect on cgroup v1 is not applicable there and is never written.
        type: list
        elements: dict
        default: []
        suboptions:
          unit:
            description:
              - A slice, service or scope, a prefix (V(user-.slice) for the slice of each user), or V(manager) for the
                defaults of the manager.
            type: str
            required: true
          property:
            description:
              - The property, as in systemd.resource-control(5), systemd.exec(5) and systemd-system.conf(5).
              - The memory properties, C(TasksMax), C(CPUWeight), C(CPUQuota), C(AllowedCPUs), C(AllowedMemoryNodes) and
                C(ManagedOOM*) belong to slices, services and scopes; C(OOMPolicy) to services and scopes;
                C(OOMScoreAdjust) and C(Limit*) to services; C(Default*) to the manager.
            type: str
            required: true
            choices:
              [AllowedCPUs, AllowedMemoryNodes, CPUQuota, CPUWeight, DefaultLimitAS, DefaultLimitCORE,
               DefaultLimitDATA, DefaultLimitFSIZE, DefaultLimitMEMLOCK, DefaultLimitNOFILE,
               DefaultLimitNPROC, DefaultLimitRTPRIO, DefaultLimitSTACK, DefaultTasksMax, LimitAS, LimitCORE,
               LimitDATA, LimitFSIZE, LimitMEMLOCK, LimitNOFILE, LimitNPROC, LimitRTPRIO, LimitSTACK,
               ManagedOOMMemoryPressure, ManagedOOMMemoryPressureLimit, ManagedOOMSwap, MemoryHigh,
               MemoryLow, MemoryMax, MemorySwapMax, OOMPolicy, OOMScoreAdjust, TasksMax]
          value:
            description:
              - Memory in bytes, with a suffix of base 1024 (V(64G)), as a share of the host's memory (V(90%)), as
                V(infinity), or as V(reserve), all but the larger of 8 GiB and 5 %, at most a quarter of the memory;
                V(reserve:16G) and V(reserve:10%) keep that much. It is rounded down to 64 KiB.
              - Tasks as a number, as a share of what the kernel can have, or V(infinity). CPU quota in per cent of one
                CPU. CPUs and memory nodes as a list such as V(0-3,8).
              - Limits as one value or V(soft:hard), in bytes for memory, V(infinity) for none. C(OOMScoreAdjust) from
                -1000 to 1000; it is inherited, so -1000 is refused for daemons that start jobs.
            type: str
            required: true
          restart:
            description:
              - Restart the service where its process still runs with another value. Without it the setting is
                pending until somebody does.
            type: bool
            default: false
          caveat:
            description:
              - What the value does not do on this host, as facts say that the manager does not know, such as a memory
                limit beside a GPU that shares the host's memory. It is a warning of the call and changes nothing; a
                value of V(infinity) has none.
            type: str
      files:
        description:
          - Whole files that are ours, root's, written atomically. A file that already stands there is recorded and
            comes back.
        type: list
        elements: dict
        default: []
        suboptions:
          path:
            description:
              - The absolute path, not below C(/proc), C(/sys), C(/dev), C(/run) or C(/tmp).
            type: str
            required: true
          content:
            description:
              - The text of the file. Exactly one of O(sets[].files[].content) and O(sets[].files[].program) is needed.
            type: str
          program:
            description:
              - A program of the collection in place of a text.
            type: str
            choices: [gpu_run]
          mode:
            description:
              - The permissions, in octal.
            type: str
            default: "0644"
          libraries:
            description:
              - Shared libraries that the text names. Each must be on the host and for its processor; otherwise the call
                is refused, with the package that brings it, before anything is written.
              - V(jemalloc), V(tcmalloc), V(mimalloc) and a file name without a folder stand for the path where the
                host keeps it, and C(@NAME@) in the text becomes that path. What has a C($) in it is left to the
                loader.
            type: list
            elements: str
            default: []
  root:
    description:
      - The tree to work on. In any other than V(/) (a mounted image) only files are read and written, and nothing
        live is touched.
    type: path
    default: /
"""

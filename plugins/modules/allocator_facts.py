#!/usr/bin/python
# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather what decides how a host, its C library and its torch give out memory, within a time limit."""

DOCUMENTATION = r"""
module: allocator_facts
short_description: Gather what decides how a host, its C library and its torch give out memory
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Tells how the kernel hands out memory (huge pages in all their switches, overcommit, fragmentation, C(/dev/shm)),
    which control group limits hold and at which level, which resource limits a login, a service and a process have,
    and who was killed for want of memory.
  - Tells which malloc a process really runs on, from what it has mapped, and which variables steer it.
  - Tells the versions of each torch on the host and the allocator configuration that its jobs get, from files alone.
    Neither torch nor CUDA is started, unless O(import_torch) is set.
  - Compares all of it with a table of combinations that are known to hurt.
  - Each group of figures names its C(source). A figure that cannot be had is null, never 0, and the C(reason) or the
    entry in C(reasons) says why.
  - Each source is asked in a child process with a part of the time. One that fails or hangs leaves its section null,
    with the reason in C(gathered_from); the module itself succeeds.
options:
  slices:
    description: Names of systemd slices whose effective limits are wanted, as V(gpu-jobs.slice).
    type: list
    elements: str
    default: []
  services:
    description: Names of systemd services whose limits and malloc are wanted. V(slurmd) stands for V(slurmd.service).
    type: list
    elements: str
    default: []
  processes:
    description: Numbers or names of running processes whose limits and malloc are wanted; at most 8 of one name.
    type: list
    elements: str
    default: []
  users:
    description: Users whose login limits are wanted. Without it, the user of the task.
    type: list
    elements: str
    default: []
  interpreters:
    description:
      - Python interpreters of the jobs, by path or name.
      - Without it, those of the usual places that have torch. Root then runs only what lies in a folder of root.
    type: list
    elements: str
    default: []
  environment:
    description:
      - Variables that the jobs have, such as V(PYTORCH_ALLOC_CONF) or V(LD_PRELOAD).
      - They come before those of the task, of C(/etc/environment) and of C(/etc/profile.d).
    type: dict
    default: {}
  import_torch:
    description:
      - Import torch in each interpreter and ask it too. This takes seconds, so O(timeout) should be raised.
      - CUDA is not started even then.
    type: bool
    default: false
  timeout:
    description:
      - Seconds for all sources together; the module is back at most a second later.
      - A source may take half of what is left, the last one, torch, all of it.
    type: float
    default: 8.0
attributes:
  check_mode:
    description: Changes nothing, so check mode makes no difference.
    support: full
  diff_mode:
    description: Changes nothing, so there is no diff.
    support: none
  facts:
    description: Returns facts, and can be listed in the configuration C(FACTS_MODULES) to run with C(gather_facts).
    support: full
  platform:
    description: The systems that the module works on.
    support: full
    platforms: posix
notes:
  - Needs Python 3.9 or newer on the host, and nothing else. As an ordinary user the kernel log and the processes of
    others may be closed; the reason then says so.
  - A library that the variable E(LD_PRELOAD) names and that is missing spoils no fact.
seealso:
  - module: gpu_fleet.node.gpu_facts
  - module: gpu_fleet.node.memory_smoke_test
"""

EXAMPLES = r"""
- name: Gather what decides how the jobs of this host get memory
  gpu_fleet.node.allocator_facts:
    slices: [gpu-jobs.slice]
    services: [slurmd]
    users: [root, trainer]
    interpreters: [/opt/pytorch/bin/python3]
    environment:
      PYTORCH_ALLOC_CONF: expandable_segments:True

- name: Ensure that nothing is known to hurt
  ansible.builtin.assert:
    that: memory.advisories | length == 0
    fail_msg: "{{ memory.advisories | map(attribute='problem') | join('; ') }}"
  vars:
    memory: "{{ ansible_facts['gpu_fleet_allocator'] }}"

- name: Show the services that still run with old limits
  ansible.builtin.debug:
    msg: "{{ item.service }}: restart it for {{ item.differing | join(', ') }}"
  loop: "{{ ansible_facts['gpu_fleet_allocator'].limits.services }}"
  loop_control:
    label: "{{ item.service }}"
  when: item.restart_needed is true
"""

RETURN = r"""
ansible_facts:
  description: The facts.
  returned: always
  type: dict
  contains:
    gpu_fleet_allocator:
      description: Everything that decides how memory is given out on this host.
      returned: always
      type: dict
      contains:
        host:
          description: What the kernel does; null where it could not be gathered.
          returned: always
          type: dict
          contains:
            memory:
              description: Figures of C(/proc/meminfo) in bytes; null where this kernel does not have one.
              returned: always
              type: dict
              contains:
                total:
                  description: All RAM that the kernel uses, in bytes.
                  type: int
                free:
                  description: Unused, in bytes.
                  type: int
                available:
                  description: What programs can have without swapping, in bytes.
                  type: int
                swap_total:
                  description: All swap, in bytes; 0 for none.
                  type: int
                swap_free:
                  description: Unused swap, in bytes.
                  type: int
                shared:
                  description: Shared memory and tmpfs, in bytes. Pinned buffers count here.
                  type: int
                committed:
                  description: What programs were promised, in bytes.
                  type: int
                commit_limit:
                  description: What may be promised where overcommit is off, in bytes.
                  type: int
                anonymous_huge:
                  description: Private memory in huge pages, in bytes.
                  type: int
                shared_huge:
                  description: Shared memory in huge pages, in bytes.
                  type: int
                reserved_huge:
                  description: Memory in the pools of reserved huge pages, in bytes.
                  type: int
                source: &source
                  description: The file, command or call that the figures come from.
                  returned: always
                  type: str
                reasons: &reasons
                  description: For each figure that is null the reason.
                  returned: always
                  type: dict
            page_size:
              description: The size of a page.
              returned: always
              type: dict
              contains:
                bytes:
                  description: In bytes; never null.
                  type: int
                source: *source
                reasons: *reasons
            overcommit:
              description: How freely memory is promised; null for what this kernel does not have.
              returned: always
              type: dict
              contains:
                mode:
                  description: The value of vm.overcommit_memory.
                  type: int
                name:
                  description: V(heuristic), V(always) or V(never) in words.
                  type: str
                ratio:
                  description: The value of vm.overcommit_ratio, in per cent.
                  type: int
                kbytes:
                  description: The value of vm.overcommit_kbytes, in KiB; 0 where the ratio counts.
                  type: int
                swappiness:
                  description: The value of vm.swappiness, 0 to 200.
                  type: int
                max_map_count:
                  description: The most mappings of a process.
                  type: int
                min_free_kbytes:
                  description: What the kernel keeps free, in KiB.
                  type: int
                zone_reclaim_mode:
                  description: The value of vm.zone_reclaim_mode, a bit mask; null on a machine without NUMA.
                  type: int
                source: *source
                reasons: *reasons
            fragmentation:
              description: Whether large pieces of memory are still to be had.
              returned: always
              type: dict
              contains:
                free_blocks:
                  description: Free memory by the size of its pieces.
                  returned: always
                  type: dict
                  contains:
                    huge_page:
                      description: The size of a huge page in bytes; null where the kernel has none.
                      type: int
                    zones:
                      description: >-
                        Each zone with its C(node), C(zone) name, C(blocks) (how many free pieces of 1, 2, 4, ...
                        pages), C(free) bytes, and C(free_in_huge_pages), the bytes in pieces of at least a huge page;
                        null where the size of one is not known.
                      type: list
                      elements: dict
                    source: *source
                    reasons: *reasons
                counters:
                  description: Counters since boot; null where this kernel does not count.
                  returned: always
                  type: dict
                  contains:
                    compact_stall:
                      description: How often a program waited for memory to be put together.
                      type: int
                    compact_fail:
                      description: How often that was in vain.
                      type: int
                    compact_success:
                      description: How often it helped.
                      type: int
                    compact_daemon_wake:
                      description: How often the kernel did it in the background.
                      type: int
                    thp_fault_alloc:
                      description: Faults that got a huge page.
                      type: int
                    thp_fault_fallback:
                      description: Faults that wanted one and got small pages.
                      type: int
                    thp_collapse_alloc:
                      description: Huge pages that khugepaged put together.
                      type: int
                    thp_collapse_alloc_failed:
                      description: How often it found no piece large enough.
                      type: int
                    thp_split_page:
                      description: Huge pages that were split again.
                      type: int
                    thp_file_alloc:
                      description: Huge pages of shared memory and files.
                      type: int
                    oom_kill:
                      description: Processes killed for want of memory, by whatever limit.
                      type: int
                    fallback_share:
                      description: The share of faults that wanted a huge page in vain, 0 to 1; null before the first.
                      type: float
                    source: *source
                    reasons: *reasons
            shm:
              description: C(/dev/shm), where workers share tensors.
              returned: always
              type: dict
              contains:
                size:
                  description: In bytes; null where there is none.
                  type: int
                used:
                  description: In bytes.
                  type: int
                free:
                  description: In bytes.
                  type: int
                inodes_free:
                  description: How many more files it takes.
                  type: int
                type:
                  description: The file system; null where nothing is mounted there.
                  type: str
                options:
                  description: The mount options; null where nothing is mounted there.
                  type: str
                source: *source
                reasons: *reasons
            thp:
              description: Transparent huge pages; null for what this kernel does not have.
              returned: always
              type: dict
              contains:
                available:
                  description: Whether this kernel has them.
                  type: bool
                enabled:
                  description: The switch for private memory, V(always), V(madvise) or V(never).
                  type: str
                defrag:
                  description: What a fault does where no huge page is free.
                  type: str
                shmem_enabled:
                  description: The switch for shared memory.
                  type: str
                use_zero_page:
                  description: 1 where reads of untouched memory use one shared huge page.
                  type: int
                huge_page:
                  description: The size of a huge page in bytes.
                  type: int
                shrink_underused:
                  description: 1 where mostly empty huge pages are split under pressure.
                  type: int
                khugepaged:
                  description: Its settings by name; null for those that this kernel does not have.
                  type: dict
                sizes:
                  description: >-
                    Each size that can be switched by itself, with C(bytes), C(enabled), C(shmem_enabled), C(source) and
                    C(reasons).
                  type: list
                  elements: dict
                mounts:
                  description: The tmpfs mounts that ask for huge pages by themselves, with C(mount) and C(huge).
                  type: list
                  elements: dict
                fully_off:
                  description: >-
                    Whether nobody can get a huge page any more, private or shared, of any size; null where a switch
                    could not be read.
                  type: bool
                boot:
                  description: The words about huge pages on the boot line.
                  type: list
                  elements: str
                source: *source
                reasons: *reasons
            ptrace_scope:
              description: The limit on looking into other processes, which also limits sharing of CUDA tensors.
              returned: always
              type: dict
              contains:
                value:
                  description: The value of kernel.yama.ptrace_scope; null where this kernel has none.
                  type: int
                source: *source
                reasons: *reasons
        cgroup:
          description: Control groups; null where they could not be gathered.
          returned: always
          type: dict
          contains:
            layout:
              description: V(unified), V(hybrid) or V(legacy); null where there are none.
              type: str
            version:
              description: 1 or 2, by where the memory controller is; null where it is nowhere.
              type: int
            caller:
              description: The group of the task.
              returned: always
              type: dict
              contains: &place
                name:
                  description: V(caller), or the name of the slice.
                  type: str
                path:
                  description: The path below the root of the hierarchy. C(gpu-train.slice) lies below C(gpu.slice).
                  type: str
                active:
                  description: Whether the kernel has the group now.
                  type: bool
                limits:
                  description:
                    - The tightest limit on the way up, each with its C(value), the C(level) and file (C(source)) that
                      sets it, and a C(reason) where the value is null, which also is the case where nothing limits.
                    - C(memory_max), C(memory_high), C(swap_max) and C(memory_and_swap_max) (version 1) in bytes,
                      C(tasks_max) in tasks, C(cpu_quota) in CPUs.
                  type: dict
                memory_current:
                  description: What the group uses with those below it, in bytes; null for the root of version 2.
                  type: int
                tasks_current:
                  description: Its tasks; null for the root.
                  type: int
                cpus:
                  description: The CPUs that it may use, as a list of ranges; null without the controller.
                  type: str
                memory_nodes:
                  description: The NUMA nodes that it may use, as a list of ranges; null without the controller.
                  type: str
                reason:
                  description: Why something about it is not known; else null.
                  type: str
                source: *source
                reasons: *reasons
            slices:
              description: Each slice of O(slices).
              returned: always
              type: list
              elements: dict
              contains: *place
            source: *source
            reasons: *reasons
        oom:
          description: Who was killed for want of memory; null where it could not be gathered.
          returned: always
          type: dict
          contains:
            kills:
              description: What the kernel log remembers, oldest first; null with C(log_reason) where it is closed.
              returned: always
              type: list
              elements: dict
              contains:
                when:
                  description: Seconds since the epoch; null where the time of the boot is not known.
                  type: float
                time:
                  description: The same moment in UTC.
                  type: str
                pid:
                  description: The number of the process.
                  type: int
                command:
                  description: Its name.
                  type: str
                uid:
                  description: Its user; null where the kernel does not say.
                  type: int
                scope:
                  description: >-
                    Whose limit it was, V(cgroup), V(host), V(cpuset) or V(memory_policy); null where the log does not
                    say.
                  type: str
                limit_group:
                  description: The control group whose limit was reached; null for the host.
                  type: str
                task_group:
                  description: The control group of the process; null where the kernel does not say.
                  type: str
                anon_rss:
                  description: Private memory in bytes; null where the kernel does not say. So for the next three.
                  type: int
                file_rss:
                  description: Mapped files in bytes.
                  type: int
                shmem_rss:
                  description: Shared and pinned memory in bytes.
                  type: int
                total_vm:
                  description: Address space in bytes.
                  type: int
            log_source:
              description: The kernel log.
              type: str
            log_reason:
              description: Why it could not be read; else null.
              type: str
            groups:
              description: Each control group that counts a kill, or a refusal of version 2.
              returned: always
              type: list
              elements: dict
              contains:
                group:
                  description: Its path.
                  type: str
                oom_kill:
                  description: Kills, in version 2 with those in groups below, and those of groups that are gone.
                  type: int
                own_oom_kill:
                  description: Kills in this group alone; null where the kernel does not count them.
                  type: int
                oom:
                  description: How often it was out of memory; null in version 1.
                  type: int
                oom_group_kill:
                  description: How often the whole group was killed at once; null in version 1 and older kernels.
                  type: int
                max:
                  description: How often it was at its limit.
                  type: int
                high:
                  description: How often it was slowed down; null in version 1.
                  type: int
                source: *source
            groups_source:
              description: The root of the hierarchy.
              type: str
            groups_reason:
              description: Why some groups were not looked at; else null.
              type: str
        limits:
          description: >-
            Resource limits; null where they could not be gathered. Values are numbers in the kernel's units (bytes,
            seconds, or how many) or V(unlimited).
          returned: always
          type: dict
          contains:
            caller:
              description: What the task itself has, by item with C(soft) and C(hard), in C(limits).
              returned: always
              type: dict
              contains:
                limits: &table
                  description: By item (nofile, nproc, memlock, ...) the C(soft) and C(hard) value.
                  type: dict
                source: *source
                reasons: *reasons
            logins:
              description: What C(pam_limits) gives each user of O(users), over all files in their order.
              returned: always
              type: list
              elements: dict
              contains:
                user:
                  description: The user.
                  type: str
                uid:
                  description: Its number; null where there is no such user.
                  type: int
                groups:
                  description: Its groups.
                  type: list
                  elements: str
                limits:
                  description: >-
                    By item the C(soft) and C(hard) value, the line (file and number) that decides each, in
                    C(soft_source) and C(hard_source), and a C(reason) where one is null.
                  type: dict
                reason:
                  description: Why no line counts for this user, or only some; else null.
                  type: str
            services:
              description: Each service of O(services).
              returned: always
              type: list
              elements: dict
              contains:
                service:
                  description: The unit.
                  type: str
                pid:
                  description: Its main process; null where it does not run.
                  type: int
                configured:
                  description: >-
                    By item the C(soft) and C(hard) value that systemd gives at the next start; null where systemd does
                    not say.
                  type: dict
                running:
                  description: The same of the main process; null where there is none.
                  type: dict
                differing:
                  description: >-
                    The items of which the main process has other values. That a program raised its own soft limit to
                    the hard one does not count. Null where one of both is not known.
                  type: list
                  elements: str
                restart_needed:
                  description: Whether a restart would change a limit; null where one of both is not known.
                  type: bool
                source: *source
                reason: &reason
                  description: Why something is null; else null.
                  returned: always
                  type: str
            processes:
              description: Each process of O(processes).
              returned: always
              type: list
              elements: dict
              contains:
                asked: &asked
                  description: What O(processes) or O(services) named.
                  type: str
                pid: &pid
                  description: Its number; null where there is none.
                  type: int
                command: &command
                  description: Its name; null where there is none.
                  type: str
                limits: *table
                source: *source
                reason: *reason
        malloc:
          description: The C library and what stands in its place; null where it could not be gathered.
          returned: always
          type: dict
          contains:
            glibc:
              description: The C library of the Python that runs the module.
              returned: always
              type: dict
              contains:
                version:
                  description: As V(2.34); null where it is not glibc.
                  type: str
                tunables:
                  description: The names that E(GLIBC_TUNABLES) may hold; null where it is not glibc.
                  type: list
                  elements: str
                tunables_source:
                  description: The loader's own list, or a table for versions before 2.33.
                  type: str
                source: *source
                reasons: *reasons
            variables:
              description: Each variable that steers malloc or torch, in the order in which sources win.
              returned: always
              type: list
              elements: dict
              contains: &variable
                name:
                  description: The name.
                  type: str
                value:
                  description: The value.
                  type: str
                source:
                  description: V(option environment), V(caller), or a file.
                  type: str
                read_by:
                  description: V(glibc), V(jemalloc), V(tcmalloc), V(mimalloc), V(loader) or V(torch).
                  type: str
            unknown_tunables:
              description: Tunables that are set and that this C library passes over, with C(name) and C(source).
              returned: always
              type: list
              elements: dict
            preloads:
              description: >-
                Each library that the loader is to load first, by E(LD_PRELOAD) or C(/etc/ld.so.preload), with C(path),
                C(source), whether it C(exists) (null where only the loader can know) and a C(reason) where it is not
                simply there.
              returned: always
              type: list
              elements: dict
            libraries:
              description: >-
                For jemalloc, tcmalloc and mimalloc the C(path) of the installed library; null with a C(reason) that
                names the package.
              returned: always
              type: dict
            processes:
              description: What each process of O(processes), and the main process of each of O(services), runs on.
              returned: always
              type: list
              elements: dict
              contains:
                asked: *asked
                pid: *pid
                command: *command
                malloc:
                  description: V(glibc), V(musl), V(jemalloc), V(tcmalloc) or V(mimalloc); null where it is not known.
                  type: str
                library:
                  description: Its file; null where it is not known.
                  type: str
                how:
                  description: How it came to be in force.
                  type: str
                variables:
                  description: The variables that the process was started with.
                  type: list
                  elements: dict
                  contains: *variable
                source: *source
                reason: *reason
        torch:
          description: >-
            Each interpreter of O(interpreters), or each of the usual places that has torch; null where they could not
            be gathered.
          returned: always
          type: list
          elements: dict
          contains:
            interpreter:
              description: Its path, or what was asked for.
              type: str
            python:
              description: The version of Python; null where it did not answer.
              type: str
            prefix:
              description: The environment that it belongs to; null where it did not answer.
              type: str
            folder:
              description: Where torch lies; null where there is none.
              type: str
            version:
              description: The version of torch.
              type: str
            cuda:
              description: The version of CUDA that it was built for; null for builds without.
              type: str
            hip:
              description: The version of HIP that it was built for; null for builds without.
              type: str
            nccl:
              description: The version of NCCL beside it; null where it is built in and torch was not imported.
              type: str
            nccl_required:
              description: The version that torch's package names; null where it names none.
              type: str
            cudnn:
              description: The version of cuDNN beside it; null where it is built in and torch was not imported.
              type: str
            cudnn_required:
              description: The version that torch's package names; null where it names none.
              type: str
            cpu_tensors:
              description: Who gives out the memory of CPU tensors, V(malloc) or V(mimalloc) that torch carries.
              type: str
            malloc:
              description: >-
                What the interpreter runs on with O(environment), in C(name), C(library) and C(how); C(name) is null
                where that cannot be told.
              type: dict
            allocator:
              description: The allocator of GPU memory; null where there is no torch.
              type: dict
              contains:
                reads:
                  description: The variables that this version reads; the first that is set wins.
                  type: list
                  elements: str
                variable:
                  description: The one that is in force; null for none.
                  type: str
                configuration:
                  description: Its value without blanks; null for none.
                  type: str
                source:
                  description: Where it is set; null for none.
                  type: str
                options:
                  description: Its options by name.
                  type: dict
                backend:
                  description: V(native) or V(cudaMallocAsync); null for builds without GPU support.
                  type: str
                caching:
                  description: Whether freed memory is kept; null for builds without GPU support.
                  type: bool
                valid:
                  description: Whether this version takes the string; null where none is set.
                  type: bool
                problems:
                  description: What it refuses, a sentence each.
                  type: list
                  elements: str
                concerns:
                  description: What it takes and does not do as one thinks, a sentence each.
                  type: list
                  elements: str
                reason: *reason
            imported:
              description: >-
                What torch said itself, C(version), C(cuda), C(hip), C(nccl), C(cudnn), C(backend), C(configuration) and
                C(cuda_started), or a C(reason); null without O(import_torch).
              type: dict
            reason: *reason
            source: *source
            reasons: *reasons
        advisories:
          description: The combinations of this host that are known to hurt.
          returned: always
          type: list
          elements: dict
          contains:
            name:
              description: A short name.
              type: str
            severity:
              description: V(error) or V(warning).
              type: str
            subject:
              description: V(host), a control group, or the interpreter.
              type: str
            problem:
              description: What happens.
              type: str
            action:
              description: What to do.
              type: str
            source:
              description: Who reported it.
              type: str
            observed:
              description: The facts that match.
              type: dict
        undecided_advisories:
          description: >-
            Those that only facts that could not be read keep from being judged, with C(name), C(subject) and C(unread).
          returned: always
          type: list
          elements: dict
        gathered_from:
          description: >-
            For each section its C(state) (V(ok), V(timeout) or V(error)), a C(detail) where it is not V(ok), else null,
            and the C(seconds) it took, null where it did not end.
          returned: always
          type: dict
        left_behind:
          description: Processes that wait inside the kernel and could not be ended, of this run or an earlier one.
          returned: always
          type: list
          elements: int
        left_behind_reason:
          description: Why they could not be noted for the next run; else null.
          returned: always
          type: str
        gathered_at:
          description: When these facts were gathered, in seconds since the epoch.
          returned: always
          type: int
        duration:
          description: How long that took, in seconds.
          returned: always
          type: float
"""

import json
import sys

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Build the spec, open the host, gather, leave."""
    from ansible_collections.gpu_fleet.node.plugins.module_utils._allocator import _arguments, _gather
    from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
    from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

    module = AnsibleModule(argument_spec=_arguments.spec(), supports_check_mode=True)
    try:
        facts = _gather.gather(Host(), _arguments.options(module.params), module.params["timeout"])
    except TuningError as error:
        module.fail_json(msg=str(error))
    module.exit_json(ansible_facts={"gpu_fleet_allocator": facts})


if __name__ == "__main__":
    if sys.version_info < (3, 9):
        message = "allocator_facts: needs Python 3.9 or newer on the host; set ansible_python_interpreter"
        sys.stdout.write(json.dumps({"failed": True, "msg": message}))
        raise SystemExit(1)
    main()

#!/usr/bin/python
# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gather facts about the GPUs of a host that can be trusted, within a time limit, whatever the driver does."""

DOCUMENTATION = r"""
module: gpu_facts
short_description: Gather facts about the GPUs of a host that can be trusted, whatever the driver does
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Asks the sources best first. These are NVML through C(pynvml) (of the package nvidia-ml-py, or the older pynvml)
    where the Python of the task has it, then C(nvidia-smi), then sysfs and C(/proc/driver/nvidia), which also serve
    where the driver does not answer. Nothing is installed.
  - Each figure of a GPU is a value with its source in C(sources), or null with the reason in C(reasons). A figure that
    the driver does not give is never 0.
  - A driver that is missing, broken or hangs is a result, with a word in C(state), a sentence in C(detail) and the
    remedy in C(action). The module itself succeeds, and what sysfs tells is there in each case.
  - The driver is asked in a child process. One that cannot be ended, because it waits inside the kernel, is left alone
    and noted below C(/run/gpu-fleet); as long as it stands, no further run asks the driver, and the state is
    V(timeout).
options:
  timeout:
    description:
      - Seconds for all sources together; the module is back at most a second later.
      - Without persistence mode, a driver that starts eight GPUs for each question may need more than the default.
    type: float
    default: 8.0
  expected_count:
    description:
      - How many GPUs this host should have, to compare with those that can be used.
      - Without it, they are compared with those that PCI shows, without those that are excluded in the driver or
        handed to a virtual machine.
    type: int
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
  - Needs Python 3.9 or newer on the host, and nothing else. As an ordinary user some figures and the kernel log may be
    missing, and a process that cannot be ended cannot be noted for the next run.
seealso:
  - module: gpu_fleet.node.memory_smoke_test
"""

EXAMPLES = r"""
- name: Gather what is known about the GPUs
  gpu_fleet.node.gpu_facts:
    expected_count: 8

- name: Ensure that every GPU can be used
  ansible.builtin.assert:
    that: gpu.state == 'ok' and gpu.as_expected
    fail_msg: "{{ gpu.state }}: {{ gpu.detail }}; {{ gpu.action }}"
  vars:
    gpu: "{{ ansible_facts['gpu_fleet_gpu'] }}"

- name: Show the CPUs near each GPU
  ansible.builtin.debug:
    msg: "{{ item.bus_id }} is on node {{ item.numa_node }} near CPUs {{ item.local_cpus }}"
  loop: "{{ ansible_facts['gpu_fleet_gpu'].gpus }}"
  loop_control:
    label: "{{ item.bus_id }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts.
  returned: always
  type: dict
  contains:
    gpu_fleet_gpu:
      description: Everything that is known about the GPUs of this host.
      returned: always
      type: dict
      contains:
        state:
          description:
            - One word for the whole stack, the first of these that is true.
            - V(timeout), a source did not answer in time, now or in an earlier run whose process still stands.
            - V(gpu_lost), a GPU has fallen off the bus, needs a reset, or is held by the driver and not listed.
            - V(permission), the driver refuses this user or container.
            - V(ok), GPUs can be used; C(as_expected) says whether all are there.
            - V(no_gpu), PCI shows none for this system.
            - V(driver_not_loaded), V(version_mismatch) (the library is not of the loaded driver's version),
              V(no_library) (the driver is loaded, and neither NVML nor nvidia-smi is there to be asked).
            - V(driver_error), anything else; C(detail) has what was said.
          returned: always
          type: str
        detail:
          description: One sentence about the state, with the command or call it comes from; null where it is V(ok).
          returned: always
          type: str
        action:
          description: What to do about it; null where the state is V(ok).
          returned: always
          type: str
        present:
          description: Whether there is a GPU at all, usable or not, as PCI or a source shows it.
          returned: always
          type: bool
        count:
          description: How many NVIDIA GPUs PCI shows or a source tells of, usable or not.
          returned: always
          type: int
        visible_count:
          description: >-
            How many GPUs the driver answers for. On a host with AMD GPUs alone, how many have a kernel driver.
          returned: always
          type: int
        expected_count:
          description: How many there should be.
          returned: always
          type: int
        expected_from:
          description: Where that number comes from, V(PCI) or V(expected_count) for the option.
          returned: always
          type: str
        as_expected:
          description: Whether both numbers are the same.
          returned: always
          type: bool
        missing:
          description: The PCI addresses of those that should be usable and are not visible.
          returned: always
          type: list
          elements: str
        driver:
          description: The versions in force.
          returned: always
          type: dict
          contains:
            loaded:
              description: The version of the kernel module that is loaded; null where none is.
              returned: always
              type: str
            kind:
              description: V(open) or V(proprietary); null where C(/proc/driver/nvidia/version) does not say.
              returned: always
              type: str
            library:
              description: The version of the NVML library, counted as the driver is; null where no source names it.
              returned: always
              type: str
            cuda:
              description: The newest CUDA version that the driver can run; null where it was not asked.
              returned: always
              type: str
        gpus:
          description:
            - Each NVIDIA GPU, in the order of its index. Any figure can be null, with the reason in C(reasons) under
              its name (C(memory.total)); a null in a list of instances or processes has no reason.
            - What one source does not have is taken from the next; C(sources) says from which.
          returned: always
          type: list
          elements: dict
          contains:
            index:
              description: The number that NVML and nvidia-smi give it; null where neither answers.
              returned: always
              type: int
            bus_id:
              description: The PCI address as sysfs spells it (C(0000:3b:00.0)); null for one that no source can name.
              returned: always
              type: str
            uuid:
              description: The UUID; null where the driver has not started the GPU.
              returned: always
              type: str
            name:
              description: The model; null where the driver does not answer and C(/proc/driver/nvidia) does not list it.
              returned: always
              type: str
            architecture:
              description: The architecture, such as V(Hopper); null for one that is newer than this module.
              returned: always
              type: str
            compute_capability:
              description: The CUDA compute capability, such as V(9.0); null without the driver.
              returned: always
              type: str
            minor_number:
              description: The number in C(/dev/nvidiaN); null without the driver.
              returned: always
              type: int
            pci_id:
              description: Maker and model as PCI numbers, such as V(10de:2335); null where PCI does not show the GPU.
              returned: always
              type: str
            kernel_driver:
              description: The kernel driver that is bound to it; null where none is.
              returned: always
              type: str
            visible:
              description: Whether the driver answers for it.
              returned: always
              type: bool
            excluded:
              description: Whether the driver was told to leave it alone.
              returned: always
              type: bool
            lost:
              description: Whether it is lost, see C(problem).
              returned: always
              type: bool
            problem:
              description: >-
                Why it cannot be used although the driver should answer for it; null where there is no problem.
              returned: always
              type: str
            busy:
              description: >-
                Whether somebody works on it, as compute processes, a load from 10 %, or memory in use by nobody that
                can be seen say (above 256 MiB, or where the driver's reserve is counted in, above 1 GiB and 2 % of
                all). Null where the driver says nothing of this.
              returned: always
              type: bool
            busy_reason:
              description: Who or what; null where it is not busy.
              returned: always
              type: str
            memory:
              description: The memory of the GPU.
              returned: always
              type: dict
              contains:
                total:
                  description: All of it in bytes; null where the driver does not say, as where it is the host's own.
                  returned: always
                  type: int
                used:
                  description: In use, in bytes; null as C(total).
                  returned: always
                  type: int
                reserved:
                  description: Kept by the driver, in bytes; null where it is not told apart.
                  returned: always
                  type: int
                free:
                  description: Free, in bytes; null as C(total).
                  returned: always
                  type: int
                api:
                  description: The version of the NVML call, V(v1) or V(v2); null where NVML was not the source.
                  returned: always
                  type: str
                used_includes_reserved:
                  description: Whether C(used) counts what the driver keeps for itself; null where C(total) is.
                  returned: always
                  type: bool
                unified:
                  description: >-
                    Whether the GPU lives in the host's own memory, so that there is no figure of its own; null where
                    that cannot be told from a figure that is missing.
                  returned: always
                  type: bool
            addressing_mode:
              description: V(HMM) or V(ATS); null for none, and where the source is too old to say.
              returned: always
              type: str
            numa_node:
              description: >-
                The NUMA node with CPUs that is nearest to it, from sysfs, then from what the driver says; null where
                the kernel says -1 and nobody else knows. A host with one such node has one answer.
              returned: always
              type: int
            local_cpus:
              description: The CPUs near to it as a list like V(0-15,32); null where no source names them.
              returned: always
              type: str
            memory_node:
              description: >-
                The NUMA node that the GPU's own memory is, on machines where it is one; null elsewhere. Never one to
                run on.
              returned: always
              type: int
            near:
              description: The network adapters, the nearest first, without virtual functions.
              returned: always
              type: list
              elements: dict
              contains:
                bus_id:
                  description: The PCI address.
                  returned: always
                  type: str
                names:
                  description: Its interfaces and RDMA devices.
                  returned: always
                  type: list
                  elements: str
                nearness:
                  description: >-
                    What lies between, in the words of C(nvidia-smi topo). V(PIX) is one PCI switch, V(PXB) several,
                    V(PHB) the host bridge, V(NODE) the NUMA node, V(SYS) more, and V(unknown) where a node is not
                    known.
                  returned: always
                  type: str
                numa_node:
                  description: Its NUMA node; null where it is not known.
                  returned: always
                  type: int
            mig:
              description: Multi-instance GPU.
              returned: always
              type: dict
              contains:
                enabled:
                  description: Whether it is on; null where the GPU has none.
                  returned: always
                  type: bool
                pending:
                  description: Whether it will be on after the next reset; null as C(enabled).
                  returned: always
                  type: bool
                instances:
                  description: The instances; null where the GPU has no MIG.
                  returned: always
                  type: list
                  elements: dict
                  contains:
                    gpu_instance:
                      description: The number of the GPU instance; null where it is refused.
                      returned: always
                      type: int
                    compute_instance:
                      description: The number of the compute instance; null where it is refused.
                      returned: always
                      type: int
                    uuid:
                      description: Its UUID; null where it is refused.
                      returned: always
                      type: str
                    memory_total:
                      description: Its memory in bytes; null where it is refused.
                      returned: always
                      type: int
                    memory_used:
                      description: In use, in bytes; null where it is refused.
                      returned: always
                      type: int
            ecc:
              description: Error correction.
              returned: always
              type: dict
              contains:
                enabled:
                  description: Whether it is on; null where the GPU has none.
                  returned: always
                  type: bool
                pending:
                  description: Whether it will be on after the next reset; null as C(enabled).
                  returned: always
                  type: bool
                volatile_corrected:
                  description: How many errors were corrected since the driver was loaded; null without ECC.
                  returned: always
                  type: int
                volatile_uncorrected:
                  description: How many were not, since the driver was loaded; null without ECC.
                  returned: always
                  type: int
                aggregate_corrected:
                  description: How many were corrected in the GPU's life; null without ECC.
                  returned: always
                  type: int
                aggregate_uncorrected:
                  description: How many were not, in the GPU's life; null without ECC.
                  returned: always
                  type: int
            row_remap:
              description: Memory rows that were replaced.
              returned: always
              type: dict
              contains:
                corrected:
                  description: How many for corrected errors; null before Ampere.
                  returned: always
                  type: int
                uncorrected:
                  description: How many for uncorrected errors; null before Ampere.
                  returned: always
                  type: int
                pending:
                  description: Whether a reset is needed to replace one; null before Ampere.
                  returned: always
                  type: bool
                failed:
                  description: Whether one could not be replaced, so that the GPU must be; null before Ampere.
                  returned: always
                  type: bool
            retired_pages:
              description: Memory pages that were given up, on GPUs before Ampere.
              returned: always
              type: dict
              contains:
                single_bit:
                  description: How many for repeated single-bit errors; null from Ampere on.
                  returned: always
                  type: int
                double_bit:
                  description: How many for double-bit errors; null from Ampere on.
                  returned: always
                  type: int
                pending:
                  description: Whether a reset is needed to give one up; null from Ampere on.
                  returned: always
                  type: bool
            pcie:
              description: The link to the host.
              returned: always
              type: dict
              contains:
                generation:
                  description: Its generation now, which an idle GPU may lower; null where it is unknown.
                  returned: always
                  type: int
                generation_max:
                  description: The best generation; null where it is unknown.
                  returned: always
                  type: int
                width:
                  description: Its lanes now; null where it is unknown.
                  returned: always
                  type: int
                width_max:
                  description: The most lanes; null where it is unknown.
                  returned: always
                  type: int
                replays:
                  description: How many packets were sent again; null without the driver.
                  returned: always
                  type: int
            nvlink:
              description: NVLink.
              returned: always
              type: dict
              contains:
                active:
                  description: How many links are up; null where the GPU has none.
                  returned: always
                  type: int
                inactive:
                  description: The numbers of those that are down; null where the GPU has none.
                  returned: always
                  type: list
                  elements: int
            clocks:
              description: The clocks, all in MHz; null where the driver does not say.
              returned: always
              type: dict
              contains:
                graphics:
                  description: Graphics now, in MHz or null.
                  returned: always
                  type: int
                sm:
                  description: Multiprocessors now, in MHz or null.
                  returned: always
                  type: int
                memory:
                  description: Memory now, in MHz or null.
                  returned: always
                  type: int
                graphics_max:
                  description: Graphics at most, in MHz or null.
                  returned: always
                  type: int
                sm_max:
                  description: Multiprocessors at most, in MHz or null.
                  returned: always
                  type: int
                memory_max:
                  description: Memory at most, in MHz or null.
                  returned: always
                  type: int
            throttle_reasons:
              description: >-
                What keeps the clocks down, such as V(gpu_idle), V(sw_power_cap) or V(hw_thermal_slowdown); empty for
                nothing, null where the driver does not say.
              returned: always
              type: list
              elements: str
            power:
              description: The power.
              returned: always
              type: dict
              contains:
                draw:
                  description: In W, averaged over a second by newer GPUs; null where the driver does not say.
                  returned: always
                  type: float
                limit:
                  description: The limit in force in W; null where the driver does not say.
                  returned: always
                  type: float
            temperature:
              description: The temperatures.
              returned: always
              type: dict
              contains:
                gpu:
                  description: Of the GPU in degrees Celsius; null where the driver does not say.
                  returned: always
                  type: int
                memory:
                  description: Of its memory in degrees Celsius; null where it has no sensor.
                  returned: always
                  type: int
            utilization:
              description: The load over the last moments.
              returned: always
              type: dict
              contains:
                gpu:
                  description: In %; null where the driver does not say, as with MIG.
                  returned: always
                  type: int
                memory:
                  description: Of the memory's bandwidth in %; null where the driver does not say, as with MIG.
                  returned: always
                  type: int
            persistence:
              description: Whether the driver stays started without users; null where it does not say.
              returned: always
              type: bool
            compute_mode:
              description: >-
                Who may use it, V(Default), V(Exclusive_Process) or V(Prohibited); null where it does not say.
              returned: always
              type: str
            processes:
              description: The processes on it that can be seen; null where the driver refuses to list them.
              returned: always
              type: list
              elements: dict
              contains:
                pid:
                  description: The process, counted as the driver does, which is the host's way.
                  returned: always
                  type: int
                name:
                  description: Its name; null where it is not to be seen from here.
                  returned: always
                  type: str
                kind:
                  description: V(compute) or V(graphics).
                  returned: always
                  type: str
                memory:
                  description: Its GPU memory in bytes; null where the driver does not say.
                  returned: always
                  type: int
            xids:
              description: >-
                The last XIDs (errors of the driver) in the kernel log, at most 20; null where it cannot be read.
              returned: always
              type: list
              elements: dict
              contains:
                code:
                  description: The number.
                  returned: always
                  type: int
                when:
                  description: The moment in seconds since the epoch; null where the time of the boot is unknown.
                  returned: always
                  type: float
                message:
                  description: What the driver adds.
                  returned: always
                  type: str
            sources:
              description: >-
                Where each figure comes from, by its name. V(nvml), V(nvidia-smi) or V(sysfs), and for the node more
                words.
              returned: always
              type: dict
            reasons:
              description: Why each figure that is null is not there, by its name.
              returned: always
              type: dict
        busy:
          description: The PCI addresses of the GPUs that somebody works on.
          returned: always
          type: list
          elements: str
        amd_gpus:
          description: Each AMD GPU, as sysfs alone shows it.
          returned: always
          type: list
          elements: dict
          contains:
            bus_id:
              description: The PCI address.
              returned: always
              type: str
            pci_id:
              description: Maker and model as PCI numbers; null where sysfs does not say.
              returned: always
              type: str
            kernel_driver:
              description: The kernel driver that is bound to it; null where none is.
              returned: always
              type: str
            memory:
              description: Its memory.
              returned: always
              type: dict
              contains:
                total:
                  description: All of it in bytes; null without the kernel driver.
                  returned: always
                  type: int
            numa_node:
              description: Its NUMA node; null where it is not known.
              returned: always
              type: int
            local_cpus:
              description: The CPUs near to it; null where sysfs does not say.
              returned: always
              type: str
            pcie:
              description: >-
                The link to the host, with C(generation), C(generation_max), C(width) and C(width_max) as above.
              returned: always
              type: dict
            near:
              description: The network adapters, as above.
              returned: always
              type: list
              elements: dict
            reasons:
              description: Why each figure that is null is not there, by its name.
              returned: always
              type: dict
        numa:
          description: The map of the NUMA nodes.
          returned: always
          type: dict
          contains:
            cpu_nodes:
              description: How many nodes have CPUs.
              returned: always
              type: int
            memory_policy_allowed:
              description: Whether this process may set a memory policy; null where that cannot be tried.
              returned: always
              type: bool
            numactl:
              description: The path of numactl, which binds memory; null where it is not installed.
              returned: always
              type: str
            memory_policy_reason:
              description: Why not; null where it may.
              returned: always
              type: str
            nodes:
              description: Each node; none where the kernel has no NUMA.
              returned: always
              type: list
              elements: dict
              contains:
                node:
                  description: Its number.
                  returned: always
                  type: int
                cpus:
                  description: Its CPUs as a list like V(0-15,32); null for a node of memory alone.
                  returned: always
                  type: str
                memory_total:
                  description: Its memory in bytes; null where the kernel does not say.
                  returned: always
                  type: int
                distances:
                  description: The distance to each node, by number, 10 to itself; empty where the kernel does not say.
                  returned: always
                  type: dict
                gpus:
                  description: The PCI addresses of the GPUs whose C(numa_node) it is.
                  returned: always
                  type: list
                  elements: str
                gpu_memory_of:
                  description: The PCI addresses of the GPUs whose C(memory_node) it is.
                  returned: always
                  type: list
                  elements: str
        gathered_from:
          description: How the sources did, under C(sysfs) (with C(/proc/driver/nvidia)), C(nvml) and C(nvidia_smi).
          returned: always
          type: dict
          contains:
            sysfs: &source
              description: How this source did.
              returned: always
              type: dict
              contains:
                state:
                  description: V(ok), V(absent) (not installed), V(not_asked) (there was no need) or a state as above.
                  returned: always
                  type: str
                detail:
                  description: What it said or did; null where there is nothing to say.
                  returned: always
                  type: str
                by:
                  description: The file of pynvml, or the command; null where there was none.
                  returned: always
                  type: str
                left:
                  description: The processes that could not be ended.
                  returned: always
                  type: list
                  elements: int
            nvml: *source
            nvidia_smi: *source
        left_behind:
          description: All processes that wait inside the kernel and could not be ended, of this run or an earlier one.
          returned: always
          type: list
          elements: int
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
    from ansible_collections.gpu_fleet.node.plugins.module_utils._gpu import _collect
    from ansible_collections.gpu_fleet.node.plugins.module_utils._host import Host
    from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError

    spec = {"timeout": {"type": "float", "default": 8.0}, "expected_count": {"type": "int"}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    try:
        facts = _collect.gather(Host(), module.params["timeout"], module.params["expected_count"])
    except TuningError as error:
        module.fail_json(msg=str(error))
    module.exit_json(ansible_facts={"gpu_fleet_gpu": facts})


if __name__ == "__main__":
    if sys.version_info < (3, 9):
        message = "gpu_facts: needs Python 3.9 or newer on the host; set ansible_python_interpreter"
        sys.stdout.write(json.dumps({"failed": True, "msg": message}))
        raise SystemExit(1)
    main()

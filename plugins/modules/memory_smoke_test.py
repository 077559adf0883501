#!/usr/bin/python
# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell whether PyTorch jobs get the memory, the bandwidth and the limits that they were promised."""

DOCUMENTATION = r"""
module: memory_smoke_test
short_description: Tell whether PyTorch jobs get the memory, the bandwidth and the limits that they were promised
version_added: 0.1.0
author: the gpu_fleet.node contributors (@gpu-fleet)
description:
  - Runs a probe in the Python that has torch, in a process group of its own with time limits, as the user, in the slice
    and
    below the launcher that jobs have. A crash, a kill by the OOM killer, a hang and a CUDA error are results.
  - Without a GPU the checks that need none run, and the others are skipped with the reason. Bandwidth is held against a
    floor of the operator, of the GPU model or of the link; an unknown model has no floor, and the result is V(unknown).
  - The verdict is V(fail) if any check failed, else V(unknown) if any is unknown. The module itself succeeds in each
    case;
    the role P(gpu_fleet.node.validate_memory#role) ends the play.
  - It leaves no process, no memory and no file behind, except its result in O(history).
options:
  profile:
    description: V(quick) takes at most 30 seconds on a host with one H200; V(full) repeats more and fills more.
    type: str
    choices: [quick, full]
    default: quick
  python:
    description: >-
      The interpreter that has torch. Empty for that of O(venv), or else the first with torch of the usual places.
    type: str
    default: ""
  venv:
    description: A virtual environment that is made and given torch if it has none yet. Empty for none.
    type: path
    default: ""
  venv_index:
    description: The package index to install from; needed where O(venv) has no torch yet.
    type: str
    default: ""
  venv_packages:
    description: What is installed into O(venv).
    type: list
    elements: str
    default: [torch, numpy]
  user:
    description: >-
      The user that runs jobs; the probe gets a session of that user with its limits. Empty for the user of the task.
    type: str
    default: ""
  slice:
    description: The systemd slice in which the probe runs, such as V(gpu-jobs.slice). Empty for none.
    type: str
    default: ""
  cgroups:
    description: Folders of existing control groups that the probe joins, for hosts without systemd.
    type: list
    elements: path
    default: []
  launcher:
    description: >-
      The command that jobs are started with, such as V(/usr/local/bin/gpu-run); the probe is started with it too.
    type: list
    elements: str
    default: []
  like_service:
    description: >-
      A running service, such as V(slurmd.service), whose limits the probe takes, as the jobs that it starts do.
    type: str
    default: ""
  environment:
    description: Variables for the probe. An allocator string that torch would refuse fails before anything is started.
    type: dict
    default: {}
  busy:
    description: Run the GPU checks even where somebody is using a GPU.
    type: bool
    default: false
  timeout:
    description: >-
      Seconds for the whole test; 0 for 300 (V(quick)) or 1800 (V(full)). Each check has its own limit as well.
    type: int
    default: 0
  checks:
    description:
      - Switches and limits of the checks. What is not given is that of the profile.
      - Each check has C(enabled) and C(timeout), in seconds.
    type: dict
    default: {}
    suboptions:
      environment: &plain
        description: Affinity, control group, limits, malloc and allocator as the process has them, against O(expect).
        type: dict
        suboptions:
          enabled: &enabled
            description: Whether the check runs.
            type: bool
            default: true
          timeout: &timeout
            description: Its time limit in seconds.
            type: int
      huge_pages:
        description: The huge pages behind a buffer of torch and of NumPy, against what the mode promises.
        type: dict
        suboptions:
          enabled: *enabled
          timeout: *timeout
          mib: &mib
            description: The size of the buffer in MiB.
            type: int
      allocator:
        description: >-
          The life of an allocation as torch and the driver see it, and whether device memory climbs over many cycles.
        type: dict
        suboptions:
          enabled: *enabled
          timeout: *timeout
          cycles:
            description: How many cycles.
            type: int
          leak_mib:
            description: By how much the memory in use may climb, in MiB.
            type: float
      fill:
        description: Fill the free memory of each GPU with patterns, read it back and compare each value.
        type: dict
        suboptions:
          enabled: *enabled
          timeout: *timeout
          share:
            description: Which share of the free memory, up to 1.
            type: float
          patterns:
            description: How many patterns, up to 3.
            type: int
      out_of_memory:
        description: Run out of device memory, catch it, and go on.
        type: dict
        suboptions:
          enabled: *enabled
          timeout: *timeout
      bandwidth:
        description: >-
          Copies between host and device, pinned and pageable, on a device, between devices, and from each NUMA node.
        type: dict
        suboptions:
          enabled: *enabled
          timeout: *timeout
          mib: *mib
          samples:
            description: How many samples.
            type: int
          all_pairs:
            description: Measure each pair of GPUs, not only a ring over all.
            type: bool
      pinned:
        description: What pinned memory costs the slice, and that too much is foreseen.
        type: dict
        suboptions:
          enabled: *enabled
          timeout: *timeout
          mib:
            description: How much a job pins, in MiB.
            type: int
          touch_mib:
            description: >-
              How much host memory is really used first, in MiB, whatever the limits say. The kernel may end the probe.
            type: int
      training:
        description: >-
          A training step in several ways, and the relations in memory and values that must hold between them.
        type: dict
        suboptions:
          enabled: *enabled
          timeout: *timeout
          layers:
            description: The depth of the stack.
            type: int
          width:
            description: Its width.
            type: int
          sequence:
            description: The length of a sequence.
            type: int
          batch:
            description: The sequences in a batch.
            type: int
      fragmentation:
        description: >-
          Cut the cache of the allocator into pieces and ask for a large block, in each mode of the allocator.
        type: dict
        suboptions:
          enabled: *enabled
          timeout: *timeout
          mib:
            description: The size of the region in MiB.
            type: int
      dataloader:
        description: Start the configured number of DataLoader workers and take batches from each.
        type: dict
        suboptions:
          enabled: *enabled
          timeout: *timeout
          workers:
            description: The number of workers; 0 for one for each CPU, at most 16.
            type: int
          prefetch:
            description: Batches that each worker has ready.
            type: int
          batch_mib:
            description: The size of a batch in MiB.
            type: float
          shared_tensors:
            description: How many shared tensors are held at once; each costs a file descriptor.
            type: int
          start_method:
            description: How workers are started.
            type: str
            choices: [fork, spawn, forkserver]
      collectives:
        description: Sums over the local GPUs with NCCL, or over two processes with gloo where there are not two GPUs.
        type: dict
        suboptions:
          enabled: *enabled
          timeout: *timeout
          mib: *mib
  floors:
    description: >-
      Bandwidths that must be reached, in GB/s (10^9 bytes). They come before those of the GPU model and the link.
    type: dict
    default: {}
    suboptions:
      host_to_device_pinned:
        description: From pinned host memory to the device.
        type: float
      device_to_host_pinned:
        description: From the device to pinned host memory.
        type: float
      host_to_device_pageable:
        description: From ordinary host memory to the device.
        type: float
      device_to_host_pageable:
        description: From the device to ordinary host memory.
        type: float
      device_to_device:
        description: On the device; bytes read and bytes written both count.
        type: float
      peer:
        description: From one GPU to another.
        type: float
  expect:
    description: What was declared for the jobs of this host; the probe compares it with what it has itself.
    type: dict
    default: {}
    suboptions:
      gpus:
        description: The number of GPUs. Without it, what PCI shows.
        type: int
      cpus:
        description: The least number of CPUs.
        type: int
      limits:
        description: >-
          Least soft limits by name (nofile, nproc, memlock, stack, core, as), in the kernel's units or V(unlimited).
        type: dict
      memory_max:
        description: The tightest memory limit above a job, in bytes or as V(64G).
        type: str
      thp:
        description: The mode of transparent huge pages.
        type: str
      environment:
        description: Variables with their values.
        type: dict
  history:
    description: The folder on the host that keeps the results. Empty for none; then nothing is compared.
    type: path
    default: /var/log/gpu-fleet
  history_length:
    description: How many results are kept.
    type: int
    default: 20
  progress:
    description:
      - A file that gets a line for each check that begins. The action plugin of this name names one for V(full), shows
        the
        lines while the test runs, and removes it. Empty for none.
    type: path
    default: ""
  drop:
    description: By how many per cent a figure may be worse than in the run before without a warning.
    type: float
    default: 10.0
attributes:
  check_mode:
    description: Runs nothing in check mode and gives no verdict.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
  platform:
    description: The systems that the module works on.
    support: full
    platforms: posix
notes:
  - Needs Python 3.9 or newer for Ansible and for torch; they need not be the same. torch is never installed unless
    O(venv) is given.
  - RV(ignore:changed) is true only where O(venv) was made.
seealso:
  - module: gpu_fleet.node.fleet_report
"""

EXAMPLES = r"""
- name: Test a host as its jobs see it
  gpu_fleet.node.memory_smoke_test:
    python: /opt/pytorch/bin/python3
    user: trainer
    slice: gpu-jobs.slice
    expect:
      gpus: 8
      limits:
        nofile: 65536
        memlock: unlimited
  register: smoke

- name: Test long, with a floor of our own and more workers
  gpu_fleet.node.memory_smoke_test:
    profile: full
    floors:
      host_to_device_pinned: 52
    checks:
      dataloader:
        workers: 32
        start_method: spawn
      collectives:
        enabled: false
"""

RETURN = r"""
verdict:
  description: V(fail), V(unknown), V(warn) or V(pass); null in check mode.
  returned: success
  type: str
msg:
  description: One sentence that names what to look at first.
  returned: success
  type: str
checks:
  description: Each judged fact.
  returned: success
  type: list
  elements: dict
  contains:
    check:
      description: The check.
      type: str
    name:
      description: What was judged.
      type: str
    status:
      description: V(pass), V(warn), V(fail), V(skip) or V(unknown).
      type: str
    observed:
      description: What was found; a text, a number, a list or a mapping.
      type: raw
    expected:
      description: What was expected.
      type: raw
    unit:
      description: The unit of both.
      type: str
    threshold_source:
      description: Where the expectation comes from.
      type: str
    action:
      description: What to do about it.
      type: str
    reason:
      description: Why, where it needs words.
      type: str
    duration:
      description: Seconds that the check took.
      type: float
measurements:
  description: >-
    Each figure with its C(check), C(name), C(value) (a median), C(unit), C(spread) (half the distance of the quartiles)
    and number of C(samples).
  returned: success
  type: list
  elements: dict
previous:
  description: The run before on this host with each common figure and its change; null for none.
  returned: success, outside check mode
  type: dict
gpus:
  description: The names of the GPUs.
  returned: success, outside check mode
  type: list
  elements: str
torch:
  description: The version of torch.
  returned: success, outside check mode
  type: str
python:
  description: The interpreter that was used.
  returned: success, outside check mode
  type: str
duration:
  description: Seconds for all.
  returned: success, outside check mode
  type: float
ended:
  description: The moment in UTC.
  returned: success, outside check mode
  type: str
kept:
  description: The file on the host that holds this result.
  returned: success, outside check mode
  type: str
"""

import json
import sys

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Build the spec, run the test, leave."""
    from ansible_collections.gpu_fleet.node.plugins.module_utils._model import TuningError
    from ansible_collections.gpu_fleet.node.plugins.module_utils._smoke import _arguments, _progress, _run

    module = AnsibleModule(argument_spec=_arguments.spec(), supports_check_mode=True)

    def tell(check: str) -> None:
        module.log("smoke test: " + check)
        _progress.tell(module.params["progress"], check)

    try:
        result = _run.smoke(module.params, module.check_mode, tell)
    except TuningError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    if sys.version_info < (3, 9):
        message = "memory_smoke_test: needs Python 3.9 or newer on the host; set ansible_python_interpreter"
        sys.stdout.write(json.dumps({"failed": True, "msg": message}))
        raise SystemExit(1)
    main()

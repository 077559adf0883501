#!/bin/sh
# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# By hand, as root on a host with cgroup v2 and no swap: the smoke test in a control group that throttles (memory.high
# alone) and in one that kills (memory.max); each must fail in time, say why, and leave no process behind.
# ansible-core must be importable by python3, and python3 must have torch (or SMOKE_PYTHON names one that has).
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)
torch=${SMOKE_PYTHON:-$(command -v python3)}
work=$(mktemp -d)
group=/sys/fs/cgroup/gpu-fleet-check
trap 'rmdir "$group"; rm -rf "$work"' EXIT
cd "$here"

link=.ansible/collections/ansible_collections/gpu_fleet
[ -e "$link/node" ] || { mkdir -p "$link" && ln -s ../../../.. "$link/node"; }
export ANSIBLE_CONFIG="$here/ansible.cfg" ANSIBLE_HOME="$work/home" ANSIBLE_NOCOLOR=1 LC_ALL="${LC_ALL:-C.UTF-8}"

grep -qw memory /sys/fs/cgroup/cgroup.subtree_control || echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir "$group"

others='environment huge_pages allocator fill out_of_memory bandwidth training fragmentation dataloader collectives'
checks='"pinned": {"touch_mib": 256, "timeout": 20}'
for name in $others; do checks="$checks, \"$name\": {\"enabled\": false}"; done

try() { # NAME EXPECTED: run in the group as it is, and look at the row of the probe
  started=$(date +%s)
  python3 -m ansible playbook -i inventory/localhost.yml validate-gpu-nodes.yml -e validate_memory_timeout=30 \
    -e "{\"validate_memory_checks\": {$checks}, \"validate_memory_cgroups\": [\"$group\"]}" \
    -e validate_memory_python="$torch" -e validate_report="$work/$1" -e validate_memory_history="$work/history" \
    >"$work/$1.log" 2>&1 && { echo "BROKEN: $1 passed"; exit 1; }
  echo "$1: ended after $(($(date +%s) - started)) s, processes left: $(wc -l <"$group/cgroup.procs")"
  python3 - "$work/$1/hosts/localhost.json" "$2" <<'END'
import json, sys
rows = [row for row in json.load(open(sys.argv[1]))["checks"] if row["status"] == "fail"]
for row in rows:
    print(f"  {row['name']}: {row['observed']}: {row['reason']}; {row['action']}")
sys.exit(0 if any(row["observed"] == sys.argv[2] for row in rows) else f"BROKEN: {sys.argv[2]} was expected")
END
}

echo 64M >"$group/memory.high"
try high throttled
echo 128M >"$group/memory.max"
echo max >"$group/memory.high"
try max killed

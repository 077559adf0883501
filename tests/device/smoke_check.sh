#!/bin/sh
# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# By hand, on a host with an NVIDIA GPU and nvcc: the smoke test through Ansible with a local connection, quick twice and
# full once, beside a bare CUDA copy loop. ansible-core must be importable by python3 (PYTHONPATH will do), and python3 must
# have torch (or SMOKE_PYTHON names the interpreter that has). What was found goes below $OUT, or a new folder.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)
out=${OUT:-$(mktemp -d)}
torch=${SMOKE_PYTHON:-$(command -v python3)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here"

link=.ansible/collections/ansible_collections/gpu_fleet
[ -e "$link/node" ] || { mkdir -p "$link" && ln -s ../../../.. "$link/node"; }
export ANSIBLE_CONFIG="$here/ansible.cfg" ANSIBLE_HOME="$work/home" ANSIBLE_NOCOLOR=1 LC_ALL="${LC_ALL:-C.UTF-8}"

play() { # NAME PROFILE: run the playbook, keep its report
  status=0
  python3 -m ansible playbook -i inventory/localhost.yml validate-gpu-nodes.yml -e validate_memory_profile="$2" \
    -e validate_memory_python="$torch" -e validate_report="$work/$1" -e validate_memory_history="$work/history" \
    >"$out/$1.log" 2>&1 || status=$?
  cp "$work/$1/hosts/localhost.json" "$out/$1.json" || { cat "$out/$1.log"; return 1; }
  echo "$1: exit status $status"
}

leftovers() { find /dev/shm /tmp -mindepth 1 -maxdepth 1 | sort; }
before=$(leftovers)
play quick1 quick
nvcc -O2 -o "$work/copy_loop" tests/device/copy_loop.cu
"$work/copy_loop" 256 12 >"$out/copy_loop.json"
play quick2 quick
"$work/copy_loop" 256 12 >"$out/copy_loop2.json"
play full full
echo "left behind in /tmp or /dev/shm:"
{ echo "$before"; leftovers; } | sort | uniq -u | grep -e gpu-fleet -e torch_ -e psm_ || echo "nothing"
nvidia-smi --query-gpu=memory.used --format=csv,noheader
python3 tests/device/compare.py "$out"

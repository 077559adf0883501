#!/bin/sh
# Copyright: (c) 2026, the gpu_fleet.node contributors
# SPDX-License-Identifier: GPL-3.0-or-later
#
# By hand, as root on a host with an NVIDIA GPU: gpu_facts through Ansible with a local connection, then each source alone,
# and every figure against what nvidia-smi says before and after. ansible-core must be importable by python3 (PYTHONPATH
# will do), and python3 should have nvidia-ml-py. What was found goes below $OUT, or a new folder; its `recording` has the
# tool's own words with UUIDs and serial numbers replaced.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)
out=${OUT:-$(mktemp -d)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here"

link=.ansible/collections/ansible_collections/gpu_fleet
[ -e "$link/node" ] || { mkdir -p "$link" && ln -s ../../../.. "$link/node"; }
export ANSIBLE_CONFIG="$here/ansible.cfg" ANSIBLE_HOME="$work/home" ANSIBLE_NOCOLOR=1 LC_ALL="${LC_ALL:-C.UTF-8}"

cat >"$work/play.yml" <<'PLAY'
- name: Gather the GPU facts and keep them
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Gather
      gpu_fleet.node.gpu_facts:
      register: found
    - name: Keep
      ansible.builtin.copy:
        content: "{{ found.ansible_facts.gpu_fleet_gpu | to_nice_json }}"
        dest: "{{ out }}/ansible.json"
        mode: "0644"
PLAY

mkdir -p "$out/before" "$out/after"
python3 tests/device/facts_compare.py record "$out/before"
python3 -m ansible playbook -i inventory/localhost.yml "$work/play.yml" -e out="$out" -e ansible_python_interpreter="$(command -v python3)" \
  >"$out/ansible.log" 2>&1 || { cat "$out/ansible.log"; exit 1; }
status=0
python3 tests/device/facts_compare.py measure "$out" || status=$?
python3 tests/device/facts_compare.py record "$out/after"
python3 tests/device/facts_compare.py compare "$out" || status=$?
echo "left behind:"
{ ls -d /run/gpu-fleet 2>/dev/null; pgrep -a nvidia-smi || true; } | grep . || echo "nothing"
exit "$status"

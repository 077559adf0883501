# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of gpu-run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from ansible_collections.gpu_fleet.node.plugins.module_utils._launcher._model import RefusalError

USAGE = "gpu-run [--gpu GPU ...] [--slice SLICE] [--strict] [--isolate] [--dry-run] -- command [argument ...]"
WRONG = 2


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    command: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    slice: str | None = None  # None: the one of the defaults file; empty: none
    strict: bool = False
    isolate: bool = False
    dry_run: bool = False


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence."""

    def error(self, message: str) -> NoReturn:
        """Refuse with the usage."""
        raise RefusalError(f"{message}; usage: {USAGE}", WRONG)


def parse(words: Sequence[str]) -> Options:
    """Read the command line; everything after the first `--` is the command."""
    parser = Parser(prog="gpu-run", usage=USAGE, description="Start a command near its GPUs.", allow_abbrev=False)
    parser.add_argument("--gpu", action="append", nargs="+", default=[], metavar="GPU", help="index, UUID or bus id")
    parser.add_argument("--slice", help="systemd slice to enter; empty for none")
    parser.add_argument("--strict", action="store_true", help="bind memory strictly; stop where anything is amiss")
    parser.add_argument("--isolate", action="store_true", help="show the command its own GPUs only")
    parser.add_argument("--dry-run", action="store_true", help="print the plan as JSON and start nothing")
    cut = list(words).index("--") if "--" in words else len(words)
    given = parser.parse_args(list(words[:cut]))
    command = tuple(words[cut + 1 :])
    if not command or not command[0]:
        raise RefusalError(f"no command is given after --; usage: {USAGE}", WRONG)
    gpus = tuple(one for group in given.gpu for word in group for one in word.split(",") if one)
    if given.gpu and not gpus:
        raise RefusalError("--gpu: names no GPU, expected an index, a UUID or a bus id", WRONG)
    return Options(command, gpus, given.slice, given.strict, given.isolate, given.dry_run)

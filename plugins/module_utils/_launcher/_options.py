# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line and the defaults file of gpu-run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

DEFAULTS = "/etc/gpu-fleet/gpu-run.json"
USAGE = "gpu-run [--gpu GPU ...] [--slice SLICE] [--strict] [--isolate] [--dry-run] -- command [argument ...]"


class RefusalError(Exception):
    """One sentence on stderr, and the exit status; the command is not started."""

    def __init__(self, sentence: str, status: int = 1) -> None:
        """Stop with a sentence."""
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    command: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    slice: str | None = None  # None: the one of the defaults file; empty: none
    strict: bool = False
    isolate: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Defaults:
    """What the administrator gave every job of this host."""

    slice: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence."""

    def error(self, message: str) -> NoReturn:
        """Refuse with the usage."""
        raise RefusalError(f"{message}; usage: {USAGE}", 2)


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
    if not command:
        raise RefusalError(f"no command is given; usage: {USAGE}", 2)
    gpus = tuple(one for group in given.gpu for word in group for one in word.split(",") if one)
    return Options(command, gpus, given.slice, given.strict, given.isolate, given.dry_run)


def defaults(path: str = DEFAULTS) -> Defaults:
    """Read the defaults file; no file means no defaults."""
    try:
        with open(path, encoding="utf-8") as stream:
            data = json.load(stream)
        return Defaults(str(data.get("slice") or ""), {str(key): str(one) for key, one in data["environment"].items()})
    except FileNotFoundError:
        return Defaults()
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise RefusalError(f"{path}: is no defaults file of gpu-run ({error})") from error

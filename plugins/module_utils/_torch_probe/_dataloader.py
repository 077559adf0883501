# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check 8: start the configured number of DataLoader workers under the limits in force and take a batch from each."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from . import _limits
from ._report import ERRORS, MIB, Context, Finding, Measure, Row, judge


class Batches:
    """A data set whose items say which worker made them; each holds small tensors that are handed over one by one."""

    def __init__(self, length: int, size: int, parts: int) -> None:
        """Remember the sizes."""
        self.length, self.size, self.parts = length, size, parts

    def __len__(self) -> int:
        """Return the number of items."""
        return self.length

    def __getitem__(self, index: int) -> list[Any]:
        """Return worker number, process number and the data."""
        torch = importlib.import_module("torch")
        worker = importlib.import_module("torch.utils.data").get_worker_info()
        torch.set_num_threads(1)
        head = torch.tensor([worker.id, os.getpid(), index])
        share = max(1, self.size // self.parts)
        return [head] + [torch.ones(share, dtype=torch.uint8) for _part in range(self.parts)]


def alone(items: list[Any]) -> Any:
    """Hand an item on as it is."""
    return items[0]


def count(wanted: int) -> int:
    """Return the number of workers: the configured one, or one for each CPU, at most 16."""
    return wanted or min(16, len(os.sched_getaffinity(0)))


def check(context: Context) -> Iterator[Finding]:
    """Start the workers and judge what came of it."""
    options = context.options
    workers = count(options["workers"])
    before, used = _limits.mark(), _limits.open_files()
    shared_size, shared_free = _limits.shared_memory()
    needed = workers * options["prefetch"] * int(options["batch_mib"] * MIB)
    yield Measure("dataloader.shared_memory_needed", needed, "bytes")
    started: dict[int, int] = {}
    with Errors() as errors:
        kept: list[Any] = []
        try:
            collect(context, workers, kept, started)
            text = ""
        except ERRORS as error:
            text = f"{error}\n{errors.text()}"
        used = _limits.open_files()
        kept.clear()
    if text:
        yield failed(_limits.explain(text, before, used), workers, started)
        return
    yield judge(
        "dataloader.workers",
        len(started) == workers,
        len(started),
        workers,
        unit="workers that gave a batch",
        threshold_source="configured number of workers",
        action="some workers gave nothing; see the limits of the jobs",
    )
    yield Measure("dataloader.open_files", used, "files")
    if shared_size and needed > shared_free:
        yield Row(
            "dataloader.shared_memory",
            "warn",
            shared_free,
            needed,
            "bytes",
            "workers x prefetch x batch",
            "enlarge /dev/shm before batches grow (containers: --ipc=host or --shm-size)",
        )


def failed(cause: _limits.Cause, workers: int, started: dict[int, int]) -> Row:
    """Return the row for a failure, which names the limit."""
    return Row(
        "dataloader.workers",
        "fail" if cause.limit != "unknown" else "unknown",
        len(started),
        workers,
        "workers that gave a batch",
        cause.limit,
        cause.action,
        cause.text,
    )


def collect(context: Context, workers: int, kept: list[Any], started: dict[int, int]) -> None:
    """Keep batches alive until each worker gave one and the wanted number of shared tensors is held."""
    options = context.options
    data = importlib.import_module("torch.utils.data")
    parts = max(1, -(-options["shared_tensors"] // (workers * options["prefetch"])))
    items = Batches(workers * options["prefetch"], int(options["batch_mib"] * MIB), parts)
    loader = data.DataLoader(
        items,
        batch_size=1,
        num_workers=workers,
        prefetch_factor=options["prefetch"],
        collate_fn=alone,
        timeout=max(5, int(options["timeout"] * 0.7)),
        multiprocessing_context=options["start_method"],
    )
    for batch in loader:
        kept.append(batch)
        started[int(batch[0][0])] = int(batch[0][1])


class Errors:
    """Standard error of this process and its workers, kept so that their words can be read."""

    def __enter__(self) -> Errors:
        """Send descriptor 2 to a file without a name."""
        self._file = tempfile.TemporaryFile()
        self._saved = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        return self

    def text(self) -> str:
        """Return the end of what was printed."""
        self._file.seek(0)
        return self._file.read()[-20000:].decode(errors="replace")

    def __exit__(self, *_error: object) -> None:
        """Give descriptor 2 back."""
        os.dup2(self._saved, 2)
        os.close(self._saved)
        self._file.close()

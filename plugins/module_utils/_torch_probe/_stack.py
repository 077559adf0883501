# Copyright: (c) 2026, the gpu_fleet.node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A deep stack of transformer layers and the ways to do one training step with it."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._report import Context

SAMPLE = 4_000_000  # gradients are compared by every n-th value, about this many
SCALE = 65536.0  # that torch starts with


@dataclass(frozen=True)
class Variant:
    """One way to do a step."""

    name: str
    dtype: str = ""  # of autocast; empty for none
    checkpoint: bool = False
    accumulate: int = 1


@dataclass(frozen=True)
class Outcome:
    """What a step took and gave."""

    peak: int  # bytes: allocated on a GPU, kept for the backward pass on the CPU
    seconds: float
    loss: float
    gradients: Any  # a flat fp32 sample on the CPU


VARIANTS = (
    Variant("baseline"),
    Variant("accumulation", accumulate=4),
    Variant("checkpointing", checkpoint=True),
    Variant("bf16", "bfloat16"),
    Variant("bf16_checkpointing", "bfloat16", checkpoint=True),
)
ON_GPU = (Variant("fp16", "float16"), Variant("fp16_checkpointing", "float16", checkpoint=True))


class Stack:
    """The model, its data and its device."""

    def __init__(self, context: Context, device: str) -> None:
        """Build it, always the same for the same options."""
        torch, options = context.torch, context.options
        self.torch, self.device, self.gpu = torch, device, device.startswith("cuda")
        torch.manual_seed(0)
        width = options["width"]
        layers = [
            torch.nn.TransformerEncoderLayer(
                width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, device=device
            )
            for _layer in range(options["layers"])
        ]
        self.layers = torch.nn.ModuleList(layers).train()
        generator = torch.Generator().manual_seed(1)
        self.data = torch.randn(options["batch"], options["sequence"], width, generator=generator).to(device)

    def parameters_bytes(self) -> int:
        """Return the size of all gradients."""
        return sum(parameter.numel() * 4 for parameter in self.layers.parameters())

    def step(self, variant: Variant) -> Outcome:
        """Do one step twice and measure the second."""
        self._once(variant)
        self.layers.zero_grad(set_to_none=True)
        if self.gpu:
            self.torch.cuda.synchronize(self.device)
            self.torch.cuda.reset_peak_memory_stats(self.device)
        started = time.monotonic()
        with self._saved() as saved:
            loss = self._once(variant)
        if self.gpu:
            self.torch.cuda.synchronize(self.device)
        seconds = time.monotonic() - started
        peak = self.torch.cuda.max_memory_allocated(self.device) if self.gpu else sum(saved.values())
        stride = max(1, self.parameters_bytes() // 4 // SAMPLE)
        gradients = self.torch.cat(
            [p.grad.detach().flatten()[::stride].float().cpu() for p in self.layers.parameters()]
        )
        self.layers.zero_grad(set_to_none=True)
        return Outcome(peak, seconds, loss, gradients)

    @contextlib.contextmanager
    def _saved(self) -> Iterator[dict[int, int]]:
        """Count what is kept for the backward pass: the CPU has no counter of peaks."""
        saved: dict[int, int] = {}
        own = {parameter.data_ptr() for parameter in self.layers.parameters()}

        def pack(tensor: Any) -> Any:
            if tensor.data_ptr() not in own:
                saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        hooks = (
            contextlib.nullcontext() if self.gpu else self.torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
        )
        with hooks:
            yield saved

    def _once(self, variant: Variant) -> float:
        torch = self.torch
        kind = "cuda" if self.gpu else "cpu"
        cast = torch.autocast(kind, getattr(torch, variant.dtype)) if variant.dtype else contextlib.nullcontext()
        scaler = self._scaler(variant)
        total = 0.0
        for _part in range(variant.accumulate):
            with cast:
                loss = self._forward(variant.checkpoint) / variant.accumulate
            (scaler.scale(loss) if scaler else loss).backward()
            total += float(loss.detach())
        if scaler:
            optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.0)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return total

    def _scaler(self, variant: Variant) -> Any:
        """Return the scaler that fp16 needs."""
        if variant.dtype != "float16":
            return None
        amp = self.torch.amp
        if hasattr(amp, "GradScaler"):
            return amp.GradScaler("cuda" if self.gpu else "cpu", init_scale=SCALE)
        return self.torch.cuda.amp.GradScaler(init_scale=SCALE)

    def _forward(self, checkpoint: bool) -> Any:
        hidden = self.data
        again = importlib.import_module("torch.utils.checkpoint").checkpoint
        for layer in self.layers:
            hidden = again(layer, hidden, use_reentrant=False) if checkpoint else layer(hidden)
        return (hidden.float() - self.data.flip(0)).pow(2).mean()

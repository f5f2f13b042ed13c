"""A model and its loss on the bench: gradients of batches, each from the same state.

Random draws are held at their means, and buffers that a pass changes are put back after it.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from autoaccum import batch as batches
from autoaccum.equivalence.randomness import Still
from autoaccum.training.accumulate import value_and_count
from autoaccum.training.stepper import Loss, Stepper

_ENTRIES = 65536  # of each parameter: enough to tell gradients apart, and small for the largest


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Gradient:
    """The gradient of a mean loss, or of the loss_sum of (loss_sum, count)."""

    vector: torch.Tensor  # strided entries of all parameters, in float64 on the CPU
    count: float | None  # None: the loss is one number, taken for a mean

    @property
    def of_mean(self) -> torch.Tensor:
        """What a step would use, were this the whole batch."""
        return self.vector if self.count is None else self.vector / (self.count or 1.0)


class Bench:
    """A model and its loss, held still. The model's gradients are lost; all else of it stays as it was."""

    def __init__(self, model: torch.nn.Module, loss: Loss, dtype: torch.dtype | None = None) -> None:
        self.model = model
        self.still = Still(model, dtype)
        self._dtype = dtype
        self.changed: dict[str, None] = {}  # names of buffers that passes changed
        self._loss = loss
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def gradient(self, batch: Any, seed: int = 0) -> Gradient:
        """Give the gradient of the loss of `batch`; the seed is for draws that cannot be held."""
        with self._as_it_was(seed), self.still:
            loss, count, is_mean = value_and_count(self._loss(self.model, batch), batches.rows(batch))
            torch.autograd.backward(loss)
            return Gradient(vector=_sampled(self._trained), count=None if is_mean else float(count))

    def accumulated(self, micro_batches: Sequence[Any]) -> torch.Tensor:
        """Give the gradient that the real training step hands to the optimizer for these micro-batches."""
        recorder = _Recorder(self._trained)
        rows = [batches.rows(each) for each in micro_batches]
        with self._as_it_was(), Still(self.model, self._dtype):
            Stepper(self.model, recorder, self._loss, micro_batches=rows)(micro_batches=micro_batches)
        return recorder.seen if recorder.seen is not None else torch.full((1,), math.nan, dtype=torch.float64)

    def forward(self, batch: Any) -> None:
        """Run the loss, for those who listen to the model's layers."""
        with self._as_it_was(), Still(self.model, self._dtype):
            self._loss(self.model, batch)

    @contextmanager
    def moved(self) -> Iterator[None]:
        """Have the parameters elsewhere for a while: what holds there too holds for training."""
        before = [parameter.detach().clone() for parameter in self._trained]
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self._trained:
                size = float(parameter.detach().abs().double().square().mean().sqrt()) or 1.0
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(noise.to(parameter) * 0.05 * size)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._trained, before, strict=True):
                    parameter.copy_(value)

    @contextmanager
    def _as_it_was(self, seed: int = 0) -> Iterator[None]:
        """Put back the buffers after a pass, and note which it changed."""
        before = {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()}
        random.seed(seed)
        numpy.random.seed(seed)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the user's GPUs
        self.model.zero_grad(set_to_none=True)
        try:
            with torch.enable_grad():
                yield
        finally:
            self.model.zero_grad(set_to_none=True)
            for name, buffer in self.model.named_buffers():
                if name in before and not torch.equal(buffer, before[name]):
                    self.changed[name] = None
                    buffer.data = before[name]


class _Recorder(torch.optim.Optimizer):
    """An optimizer that only looks: Adam's step would hide the gradient's scale."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.seen: torch.Tensor | None = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Keep the gradient."""
        self.seen = _sampled(self.param_groups[0]["params"])


def with_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Give a copy of `value`, a batch, with every tensor changed."""
    return copy.deepcopy(value, {id(tensor): change(tensor) for _, tensor in batches.tensors(value)})


def _sampled(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([_entries(parameter) for parameter in parameters])


def _entries(parameter: torch.nn.Parameter) -> torch.Tensor:
    stride = max(1, math.ceil(parameter.numel() / _ENTRIES))
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad  # None: no part in this loss
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    entries = dense.detach().reshape(-1)[::stride]
    real = torch.view_as_real(entries.resolve_conj()).reshape(-1) if entries.is_complex() else entries
    return real.to("cpu", torch.float64, copy=True)

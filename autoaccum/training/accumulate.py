"""One update from many backward passes, in the only order that is right.

    zero -> backward for each micro-batch -> divide once by what was counted -> unscale -> clip -> step -> zero

A loss is a mean over its micro-batch, weighted here by the rows, or `(loss_sum, count)`; what is minimised is the
mean over the whole window and all ranks, however the window was split. The division comes last because the count of
a window is known only at its end; until then losses are divided by a guess of it, which keeps fp16 in range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from autoaccum.errors import UsageError, WorkloadError
from autoaccum.training.ranks import Alone, Count, Ranks

if TYPE_CHECKING:
    from autoaccum.training.noise import NoiseScale


class StepResult:
    """What one update did; on a GPU `loss` and `grad_norm` wait for it only when they are read."""

    __slots__ = ("_grad_norm", "_loss_sum", "count", "micro_batches", "skipped")

    def __init__(
        self,
        *,
        loss_sum: torch.Tensor,
        count: float,
        grad_norm: torch.Tensor | None,
        skipped: bool,
        micro_batches: tuple[int, ...],
    ) -> None:
        self._loss_sum = loss_sum
        self._grad_norm = grad_norm
        self.count = count  # samples, or what the loss counted, over all ranks
        self.skipped = skipped  # no step: the scaler found an overflow, or there was nothing to learn from
        self.micro_batches = micro_batches  # the rows of each, on this rank; 0 where they cannot be counted

    @property
    def loss(self) -> float:
        """The mean over the whole window and all ranks; NaN where nothing was counted."""
        return self._loss_sum.item() / self.count if self.count else math.nan

    @property
    def grad_norm(self) -> float | None:
        """The gradient's norm before clipping; None without `clip`."""
        return None if self._grad_norm is None else self._grad_norm.item()

    def __repr__(self) -> str:
        sizes = " + ".join(f"{len(list(same))} x {size}" for size, same in groupby(self.micro_batches))
        norm = "" if self._grad_norm is None else f", grad_norm={self.grad_norm:.4g}"
        return f"StepResult(loss={self.loss:.4g}, count={self.count:g}{norm}, skipped={self.skipped}, {sizes})"


class Update:
    """Collects the gradients of one window after another, and makes one optimizer step of each."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        clip: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        ranks: Ranks | None = None,
        noise: NoiseScale | None = None,
    ) -> None:
        self.ranks = Alone() if ranks is None else ranks
        self._parameters = parameters
        self._optimizers = optimizers
        self._clip = clip
        self._scaler = scaler
        self._noise = noise
        self._guess: float | None = None  # what a window counts, from the last one
        self.begin(0)

    def begin(self, rows: int) -> None:
        """Start a window of so many rows; what gradients are there, from wherever, are dropped."""
        for parameter in chain(self._parameters, held_by(self._optimizers)):
            parameter.grad = None
        self._rows = rows
        self._divisor: Count | None = None
        self._count: Count = 0
        self._seen: torch.Tensor | None = None  # the sum of the losses, divided by the divisor
        self._sizes: list[int] = []
        if self._noise is not None:
            self._noise.begin()
            self._scale = 1.0 if self._scaler is None else self._scaler.get_scale()

    def backward(self, loss: Any, rows: int, *, padding: bool = False) -> None:
        """Add the gradient of one micro-batch; `padding` only keeps this rank in step with others."""
        value, count, is_mean = value_and_count(loss, rows)
        if self._divisor is None:
            self._divisor = self._choose_divisor(count, rows, is_mean)
        part = value * (rows / self._divisor) if is_mean else value / self._divisor
        part = part * 0 if padding else part
        torch.autograd.backward(part if self._scaler is None else self._scaler.scale(part))
        if padding:
            return
        if self._noise is not None:
            self._noise.micro_batch(count, self._divisor / self._scale)
        self._count = self._count + count
        seen = part.detach()
        self._seen = seen if self._seen is None else self._seen + seen
        self._sizes.append(max(0, rows))

    def finish(self) -> StepResult:
        """Divide by the true count, unscale, clip, step and zero, once each."""
        parameters = list(held_by(self._optimizers))  # some may have been added since
        divisor = 1.0 if self._divisor is None else self._divisor
        mine = torch.zeros((), device=parameters[0].device) if self._seen is None else self._seen * divisor
        loss_sum, count = self.ranks.total(mine, self._count)
        if not (math.isfinite(count) and count >= 0):
            self.begin(0)
            raise WorkloadError(f"loss returned (loss_sum, count) with counts that add up to {count:g}")
        if count == 0:
            return self._end(loss_sum, count, None, skipped=True)
        self.ranks.reduce(parameters, divisor, count)
        self._guess = count / self.ranks.size
        if self._scaler is None:
            return self._end(loss_sum, count, self._step(parameters, count), skipped=False)
        return self._scaled_step(self._scaler, loss_sum, count, parameters)

    def _step(self, parameters: Sequence[torch.Tensor], count: float) -> torch.Tensor | None:
        norm = self._clipped(parameters, count)
        for optimizer in self._optimizers:
            optimizer.step()
        return norm

    def _scaled_step(
        self, scaler: torch.amp.GradScaler, loss_sum: torch.Tensor, count: float, parameters: Sequence[torch.Tensor]
    ) -> StepResult:
        """Unscale and step as the scaler would, but all optimizers or none: one overflow spoils the norm of all."""
        used = [each for each in self._optimizers if any(p.grad is not None for p in held_by([each]))]
        for optimizer in used:
            scaler.unscale_(optimizer)
        overflow = scaler.is_enabled() and any(_overflowed(scaler, optimizer) for optimizer in used)
        norm = None if overflow else self._clipped(parameters, count)
        for optimizer in used if not overflow else ():
            scaler.step(optimizer)
        scaler.update()
        return self._end(loss_sum, count, norm, skipped=overflow)

    def _clipped(self, parameters: Sequence[torch.Tensor], count: float) -> torch.Tensor | None:
        if self._noise is not None:
            self._noise.window(parameters, count)
        return None if self._clip is None else torch.nn.utils.clip_grad_norm_(parameters, self._clip)

    def _end(self, loss_sum: torch.Tensor, count: float, norm: Any, *, skipped: bool) -> StepResult:
        result = StepResult(
            loss_sum=loss_sum,
            count=count,
            grad_norm=self.ranks.whole(norm),
            skipped=skipped,
            micro_batches=tuple(self._sizes),
        )
        self.begin(0)
        return result

    def _choose_divisor(self, count: Count, rows: int, is_mean: bool) -> Count:
        """Give what losses are divided by until the true count is known."""
        if self.ranks.same_divisor is not None:
            return self._guess or self.ranks.same_divisor
        if is_mean:
            return self._rows or rows  # the true count, unless a rank or a micro-batch is missing
        if self._guess is not None:
            return self._guess
        guess = count * (max(self._rows, rows, 1) / max(rows, 1))  # rows may be unknown, and negative then
        return torch.where(guess > 0, guess, 1.0) if isinstance(guess, torch.Tensor) else guess or 1.0


def held_by(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[torch.Tensor]:
    """Give the parameters that the optimizers hold now."""
    return (parameter for each in optimizers for group in each.param_groups for parameter in group["params"])


def _overflowed(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Whether unscaling found gradients that are not finite; the scaler itself tells only after its update."""
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(bool(flag.item()) for flag in found.values())


def value_and_count(loss: Any, rows: int) -> tuple[torch.Tensor, Count, bool]:
    """Give the loss of a micro-batch, what it is a mean or a sum over, and whether it is a mean; after a look at it."""
    if isinstance(loss, tuple) and len(loss) == 2:
        value, count = loss
        is_mean = False
        if isinstance(count, torch.Tensor):
            if count.numel() != 1:
                raise WorkloadError(
                    f"loss returned (loss_sum, count) with a count of shape {tuple(count.shape)}: give one number, "
                    f"or return the loss alone"
                )
            if count.requires_grad:
                raise WorkloadError(
                    "loss returned two values with gradients, taken for (loss_sum, count): add them up, or return one"
                )
            count = count.detach().reshape(())
        elif isinstance(count, bool) or not isinstance(count, Real) or count < 0 or not math.isfinite(count):
            raise WorkloadError(f"loss returned (loss_sum, count) with {count!r} as count: give what it is summed over")
    else:
        value, count, is_mean = loss, rows, True
    value = _checked(value)
    value = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value  # a sum would overflow
    if is_mean and rows < 0:
        raise UsageError("the rows of this micro-batch cannot be counted: have loss return (loss_sum, count)")
    return value, count, is_mean


def _checked(loss: Any) -> torch.Tensor:
    """Give the loss as a scalar, or raise with what is wrong with it."""
    if not isinstance(loss, torch.Tensor):
        raise WorkloadError(f"loss(model, batch) returned {type(loss).__name__}: return a tensor, or (loss_sum, count)")
    if loss.numel() != 1:
        raise WorkloadError(
            f"loss(model, batch) returned shape {tuple(loss.shape)}: return one number, such as its mean"
        )
    if not loss.requires_grad:
        raise WorkloadError("loss(model, batch) returned a tensor without grad: was it detached, or under no_grad?")
    return loss if loss.dim() == 0 else loss.reshape(())

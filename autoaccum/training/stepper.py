"""The training step: a rank's whole batch in, one exact update out, whatever fits in memory at a time.

A window that runs out of memory leaves no trace: its gradients are dropped, random generators and buffers are set
back, and the same batch is run again in smaller pieces. The smaller size is kept.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch

from autoaccum import batch as batches
from autoaccum.errors import AutoaccumWarning, NothingFits, UsageError
from autoaccum.oom import is_oom
from autoaccum.training.accumulate import StepResult, Update
from autoaccum.training.guards import as_optimizers, check_clip, check_parameters
from autoaccum.training.noise import NoiseScale
from autoaccum.training.ranks import ranks_of
from autoaccum.training.rewind import Rewind

Loss = Callable[[Any, Any], Any]


class Stepper:
    """Makes one update of each batch it is called with; see `Plan.stepper`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        loss: Loss,
        *,
        micro_batches: Sequence[int],
        world_size: int = 1,
        clip: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        noise_scale: bool = False,
    ) -> None:
        check_clip(clip)
        if not callable(loss):
            raise UsageError(f"loss is a {type(loss).__name__}: give a function of (model, batch)")
        optimizers = as_optimizers(optimizer)
        parameters = check_parameters(model, optimizers)
        ranks = ranks_of(model, world_size, sum(micro_batches))
        if not ranks.recovers and (scaler is not None or noise_scale):
            raise UsageError(
                "scaler and noise_scale do not work with fully_shard: train in bf16, and without noise_scale"
            )
        self.micro_batch = max(micro_batches)  # the largest that is tried; smaller after running out of memory
        self._model = model
        self._loss = loss
        self._planned = tuple(micro_batches)
        self._shrunk = False
        self._device = parameters[0].device
        self._noise = NoiseScale(parameters) if noise_scale else None
        self._update = Update(parameters, optimizers, clip=clip, scaler=scaler, ranks=ranks, noise=self._noise)
        self._rewind = Rewind(model, self._device)

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale as a power of ten; None before there is enough to tell, or where not asked for."""
        return None if self._noise is None else self._noise.value

    def __call__(self, batch: Any = None, *, micro_batches: Sequence[Any] | None = None) -> StepResult:
        """Make one update of this rank's whole batch, or of micro-batches that you split yourself.

        A list whose items are all tuples, lists, mappings or dataclasses counts as micro-batches; anything else,
        such as the `[inputs, labels]` of a DataLoader, as one batch.
        """
        given = _given(batch, micro_batches)
        pieces = [batch] if given is None else given
        while True:
            parts = self._split(pieces, whole=given is None)
            self._rewind.mark()
            failure = self._accumulate(parts)
            if not self._update.ranks.any_failed(bool(failure)):
                break
            self._go_back(failure, max((size for _, size in parts), default=0))
        self._rewind.learn()
        try:
            return self._update.finish()
        except Exception as error:
            if not is_oom(error):
                raise
            raise NothingFits(
                "out of memory in the optimizer's step, where a smaller micro-batch does not help: "
                "take an optimizer with less state, or free memory that something else holds"
            ) from error

    def _accumulate(self, parts: Sequence[tuple[Any, int]]) -> str:
        """Run all micro-batches; give what ran out of memory, or nothing."""
        ranks = self._update.ranks
        ranks.begin()
        self._update.begin(sum(size for _, size in parts))
        total = ranks.micro_batches(len(parts))
        try:
            for index in range(total):
                piece, size = parts[min(index, len(parts) - 1)]
                with ranks.backward(last=index == total - 1):
                    self._micro_step(piece, size, padding=index >= len(parts))
        except Exception as error:
            if not is_oom(error):
                self._update.begin(0)
                raise
            if not ranks.recovers:
                raise NothingFits(
                    f"out of memory at micro-batch {size}, and sharded ranks cannot be taken back: "
                    f"plan again with a smaller --memory-budget, so that more is left free"
                ) from error
            return str(error).strip().partition("\n")[0] or type(error).__name__
        return ""

    def _micro_step(self, piece: Any, size: int, *, padding: bool) -> None:
        moved = batches.to_device(piece, self._device)
        self._update.backward(self._loss(self._model, moved), size, padding=padding)

    def _go_back(self, failure: str, size: int) -> None:
        """Undo the window and choose a smaller size; outside the except block, so that nothing pins activations."""
        self._update.begin(0)
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._rewind.back()
        if not failure:  # another rank's
            return
        if size < 0:
            raise NothingFits(f"a micro-batch that cannot be split does not fit in memory, make it smaller: {failure}")
        if size <= 1:
            raise NothingFits(f"not even one sample fits in memory: {failure}")
        self.micro_batch, self._shrunk = min(size - 1, size * 3 // 4), True
        warnings.warn(
            f"micro-batch {size} ran out of memory ({failure}); the batch is run again with micro-batches "
            f"of at most {self.micro_batch}, and so are the next ones",
            AutoaccumWarning,
            stacklevel=3,
        )

    def _split(self, pieces: Sequence[Any], *, whole: bool) -> list[tuple[Any, int]]:
        """Give the micro-batches with their rows; those that the caller split stay whole until one did not fit."""
        parts: list[tuple[Any, int]] = []
        for piece in pieces:
            size = batches.rows(piece) if whole else _rows_or_unknown(piece)
            if whole:
                sizes = batches.sizes(size, self._planned, self.micro_batch)
            elif self._shrunk and size > self.micro_batch:
                sizes = batches.sizes(size, (size,), self.micro_batch)
            else:
                parts.append((piece, size))
                continue
            parts.extend(zip(batches.split(piece, sizes), sizes, strict=True))
        return parts


def _given(batch: Any, micro_batches: Sequence[Any] | None) -> list[Any] | None:
    """Give the micro-batches that the caller split himself, if he did."""
    if (batch is None) == (micro_batches is None):
        raise UsageError("give the step one batch, or micro_batches=[...]")
    if micro_batches is not None:
        return list(micro_batches)
    containers = isinstance(batch, list) and all(
        isinstance(item, tuple | list | Mapping) or is_dataclass(item) for item in batch
    )
    return list(batch) if containers and batch else None


def _rows_or_unknown(piece: Any) -> int:
    """Give the rows of a micro-batch; -1 where only its loss can count it (graphs, packed sequences)."""
    try:
        return batches.rows(piece)
    except UsageError:
        return -1

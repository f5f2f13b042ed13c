"""The training step: a rank's whole batch in, one exact update out, whatever fits in memory at a time.

A window that runs out of memory leaves no trace: its gradients are dropped, random generators and buffers are set
back, and the same batch is run again in smaller pieces. The smaller size is kept.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch

from autoaccum import batch as batches
from autoaccum.errors import AutoaccumWarning, NothingFits, UsageError
from autoaccum.knobs.prepare import computed, prepare
from autoaccum.oom import is_oom
from autoaccum.records import Knobs
from autoaccum.training.accumulate import StepResult, Update, held_by
from autoaccum.training.guards import as_optimizers, check_options, check_parameters
from autoaccum.training.noise import NoiseScale
from autoaccum.training.ranks import Shards, ranks_of
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
        knobs: Knobs | None = None,
    ) -> None:
        knobs = knobs or Knobs()
        check_options(clip, scaler, knobs.precision)
        if not callable(loss):
            raise UsageError(f"loss is a {type(loss).__name__}: give a function of (model, batch)")
        optimizers = as_optimizers(optimizer)
        parameters = check_parameters(model, optimizers)
        ranks = ranks_of(model, world_size, sum(micro_batches))
        if isinstance(ranks, Shards) and (scaler is not None or noise_scale):
            raise UsageError(
                "scaler and noise_scale do not work with fully_shard: train in bf16, and without noise_scale"
            )
        prepare(knobs, model, optimizers)
        self.micro_batch = max(micro_batches)  # the largest that is tried; smaller after running out of memory
        self._model = model
        self._planned = tuple(micro_batches)
        self._shrunk = False
        self._lists_are_split: bool | None = None
        self._device = parameters[0].device
        self._loss = computed(knobs, loss, self._device)
        self._noise = NoiseScale(list(held_by(optimizers))) if noise_scale else None
        self._update = Update(parameters, optimizers, clip=clip, scaler=scaler, ranks=ranks, noise=self._noise)
        self._rewind = Rewind(model, self._device)

    @property
    def noise_scale(self) -> float | None:
        """The gradient noise scale as a power of ten; None before there is enough to tell, or where not asked for."""
        return None if self._noise is None else self._noise.value

    def __call__(self, batch: Any = None, *, micro_batches: Iterable[Any] | None = None) -> StepResult:
        """Make one update of this rank's whole batch, or of micro-batches that you split yourself.

        A list of batches that add up to the plan's counts as micro-batches without the keyword; see `_given`.
        """
        given = self._given(batch, micro_batches)
        pieces = [batch] if given is None else given
        self._update.ranks.begin()
        while True:
            parts = self._split(pieces, whole=given is None)
            self._rewind.mark()
            failure, size = self._accumulate(parts)
            # All ranks go back together, and give up together where one cannot go on.
            if not self._update.ranks.any_of(bool(failure)):
                break
            self._go_back()
            if self._update.ranks.any_of(bool(failure) and size <= 1):
                raise _nothing_fits(failure, size)
            if failure:
                self._shrink(failure, size)
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

    def _given(self, batch: Any, micro_batches: Iterable[Any] | None) -> list[Any] | None:
        """Give the micro-batches that the caller split himself, if he did.

        A list of containers may be that, or one batch as a DataLoader collates nested samples. The rows of a full
        window tell; what they told holds for the shorter ones.
        """
        if (batch is None) == (micro_batches is None):
            raise UsageError("give the step one batch, or micro_batches=[...]")
        if micro_batches is not None:
            return list(micro_batches)
        if not isinstance(batch, list) or not _alike(batch):
            return None
        sizes, whole = [_rows_or_unknown(item) for item in batch], sum(self._planned)
        if sum(sizes) == whole and (len(sizes) > 1 or len(self._planned) == 1):
            self._lists_are_split = True
        elif len(sizes) > 1 and all(size == whole for size in sizes):
            self._lists_are_split = False
        if self._lists_are_split is None:
            raise UsageError(
                f"a list of {len(batch)} may be one batch or micro-batches: "
                f"write step(tuple(batch)), or step(micro_batches=batch)"
            )
        return batch if self._lists_are_split else None

    def _accumulate(self, parts: Sequence[tuple[Any, int]]) -> tuple[str, int]:
        """Run all micro-batches; give what ran out of memory and at which size, or nothing."""
        ranks, size = self._update.ranks, 0
        self._update.begin(sum(size for _, size in parts))
        total = ranks.micro_batches(len(parts))
        try:
            for index in range(total):
                piece, size = parts[min(index, len(parts) - 1)]
                with ranks.backward(last=index == total - 1):
                    self._micro_step(piece, size, padding=index >= len(parts))
        except BaseException as error:
            if not is_oom(error):
                self._update.begin(0)
                raise
            if not ranks.recovers:
                raise NothingFits(
                    f"out of memory at micro-batch {size}, and ranks that work together within a micro-batch cannot "
                    f"be taken back: plan again with a smaller memory budget, so that more is left free"
                ) from error
            return str(error).strip().partition("\n")[0] or type(error).__name__, size
        return "", 0

    def _micro_step(self, piece: Any, size: int, *, padding: bool) -> None:
        moved = batches.to_device(piece, self._device)
        self._update.backward(self._loss(self._model, moved), size, padding=padding)

    def _go_back(self) -> None:
        """Undo the window; outside the except block, so that nothing pins its activations."""
        self._update.begin(0)
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._rewind.back()

    def _shrink(self, failure: str, size: int) -> None:
        self.micro_batch, self._shrunk = min(self.micro_batch, size - 1, size * 3 // 4), True
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
            if size == 0:
                continue
            if whole:
                sizes = batches.sizes(size, self._planned, self.micro_batch)
            elif self._shrunk and size > self.micro_batch:
                sizes = batches.sizes(size, (size,), self.micro_batch)
            else:
                parts.append((piece, size))
                continue
            parts.extend(zip(batches.split(piece, sizes), sizes, strict=True))
        return parts


def _nothing_fits(failure: str, size: int) -> NothingFits:
    if not failure:
        return NothingFits("another rank ran out of memory and cannot split its micro-batch any further")
    if size < 0:
        return NothingFits(f"a micro-batch that cannot be split does not fit in memory, make it smaller: {failure}")
    return NothingFits(f"not even one sample fits in memory: {failure}")


def _alike(batch: list[Any]) -> bool:
    """Whether the items are containers of the same tensors, but for their sizes: micro-batches are."""
    if not all(isinstance(item, tuple | list | Mapping) or is_dataclass(item) for item in batch):
        return False
    kinds = [(type(item), [(name, t.dtype, t.dim()) for name, t in batches.tensors(item)]) for item in batch]
    return len(batch) > 0 and all(kind == kinds[0] for kind in kinds)


def _rows_or_unknown(piece: Any) -> int:
    """Give the rows of a micro-batch; -1 where only its loss can count it (graphs, packed sequences)."""
    try:
        return batches.rows(piece)
    except UsageError:
        return -1

"""Windows for loops that one call cannot serve (GANs, RL): you write forward passes, the update stays exact.

for window in plan.windows(loader, device="cuda"):
    with window.update(optimizer_d) as update:
        for real in window:
            update.backward(d_loss(real))
    with window.update(optimizer_g, clip=1.0) as update:
        for real in window:
            update.backward(g_loss(len(real)))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from autoaccum import batch as batches
from autoaccum.errors import UsageError
from autoaccum.training.accumulate import StepResult, Update
from autoaccum.training.guards import as_optimizers, check_gradients, check_options


class WindowUpdate:
    """One optimizer update within a window: `backward` for each micro-batch, the step at the end of the block."""

    def __init__(self, window: Window, update: Update) -> None:
        self._window = window
        self._update = update
        self._handed = False
        self.result: StepResult | None = None  # after the block

    def __enter__(self) -> Self:
        self._update.begin(self._window.rows)
        return self

    def backward(self, loss: Any) -> None:
        """Add the gradient of the present micro-batch: of a mean loss, or of `(loss_sum, count)`; once for each."""
        if not self._window.current_rows:
            raise UsageError("update.backward(loss) is for the loop over the window: for batch in window: ...")
        self._handed = True
        self._update.backward(loss, self._window.current_rows)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        handed, self._handed = self._handed, False
        if error is not None:
            self._update.begin(0)
            return
        if not handed and self._window.rows:
            raise UsageError(
                "no loss was given to update.backward(loss) in this block: it takes the place of backward()"
            )
        self.result = self._update.finish()


class Window:
    """The micro-batches of one update, to be walked through as often as there are optimizers."""

    def __init__(self, batch: Any, sizes: Sequence[int], device: torch.device | None) -> None:
        self.rows = sum(sizes)
        self.micro_batches = tuple(sizes)
        self.current_rows = 0  # of the micro-batch that a loop is at
        self._batch = batch
        self._device = device

    def __len__(self) -> int:
        return len(self.micro_batches)

    def __iter__(self) -> Iterator[Any]:
        for part, size in zip(batches.split(self._batch, self.micro_batches), self.micro_batches, strict=True):
            self.current_rows = size
            yield part if self._device is None else batches.to_device(part, self._device)
        self.current_rows = 0

    def update(
        self,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        clip: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> WindowUpdate:
        """Give the block in which this optimizer's gradients are collected; it steps once, at the block's end."""
        check_options(clip, scaler)
        optimizers = as_optimizers(optimizer)
        check_gradients(optimizers)
        return WindowUpdate(self, Update([], optimizers, clip=clip, scaler=scaler))


def windows(
    loader: Iterable[Any], micro_batches: Sequence[int], device: torch.device | str | None = None
) -> Iterator[Window]:
    """Give a window for each batch of the loader; a shorter last one is split as evenly as the plan allows."""
    where = None if device is None else torch.device(device)
    for batch in loader:
        yield Window(batch, batches.sizes(batches.rows(batch), micro_batches), where)

"""The gradient noise scale: about how large a batch is worth taking, as an order of magnitude.

Accumulation has both things it is made of: gradients of small batches and of the large batch they add up to. With B
samples the squared norm of a gradient is |G|^2 + S / B in expectation; two sizes of B give S and |G|^2, and S / |G|^2
is the batch beyond which noise no longer dominates (McCandlish et al., arXiv 1812.06162). It drifts during training
and its use for choosing a batch is disputed (arXiv 2505.23971), so no more than its power of ten is given.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

_MEMORY = 0.95  # how much of the past each window keeps
_ENOUGH = 10  # windows before there is anything to say


class NoiseScale:
    """Watches every micro-gradient before it is added, and the whole one before it is clipped."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._windows = 0
        self._noise: torch.Tensor | float = 0.0  # S
        self._signal: torch.Tensor | float = 0.0  # |G|^2
        self._square: torch.Tensor | None = None
        look = partial(_look, weakref.ref(self))
        hooks = [p.register_hook(look) for p in parameters if p.requires_grad]  # type: ignore[no-untyped-call]
        weakref.finalize(self, _remove, hooks)
        self.begin()

    def begin(self) -> None:
        """Forget the micro-batches of a window that was broken off."""
        self._square = None
        self._seen: list[tuple[torch.Tensor, float | torch.Tensor]] = []

    def micro_batch(self, count: float | torch.Tensor, factor: float | torch.Tensor) -> None:
        """Note the micro-gradient just seen: `factor / count` times it is the gradient of a mean over `count`."""
        if self._square is not None:
            self._seen.append((self._square * factor**2, count))
        self._square = None

    def window(self, parameters: Sequence[torch.Tensor], count: float) -> None:
        """Note the whole gradient, a mean over `count`, and learn from both."""
        usable = [(square / n**2, 1 / n) for square, n in self._seen if n > 0]
        if len(usable) < 2:
            return
        whole = sum(p.grad.detach().float().square().sum() for p in parameters if p.grad is not None)
        small = sum(square for square, _ in usable) / len(usable)
        inverse = sum(float(share) for _, share in usable) / len(usable)
        noise = (small - whole) / (inverse - 1 / count)
        signal = whole - noise / count
        if not torch.isfinite(torch.as_tensor(noise + signal)):
            return
        self._noise = _MEMORY * self._noise + (1 - _MEMORY) * noise
        self._signal = _MEMORY * self._signal + (1 - _MEMORY) * signal
        self._windows += 1

    @property
    def value(self) -> float | None:
        """The noise scale in samples (or in what the loss counts), to the next power of ten; None if unknown."""
        noise, signal = float(self._noise), float(self._signal)
        if self._windows < _ENOUGH or noise <= 0 or signal <= 0:
            return None
        return float(10 ** round(math.log10(noise / signal)))


def _look(watching: weakref.ref[NoiseScale], gradient: torch.Tensor) -> None:
    watcher = watching()
    if watcher is not None:
        square = gradient.detach().float().square().sum()
        watcher._square = square if watcher._square is None else watcher._square + square


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()

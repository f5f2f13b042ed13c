"""Cross entropy as a fused kernel holds it, such as Liger's: the gradient is written over the logits.

Nothing is computed, which makes no difference on a virtual GPU. There is no copy of the logits for their log-softmax,
none that autocast makes, and none for the gradient.
"""

from __future__ import annotations

from typing import Any

import torch

_HOME: Any = torch._C._nn  # of the function beneath `torch.nn.functional.cross_entropy`
_NONE = 0  # the number of reduction="none"


class FusedLoss:
    """Takes the place of cross entropy, by whatever name it is called and wherever it was imported from."""

    def __init__(self) -> None:
        self.calls = 0
        self._original = _HOME.cross_entropy_loss
        _HOME.cross_entropy_loss = self._cross_entropy

    def _cross_entropy(
        self,
        logits: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        reduction: int = 1,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Any:
        if not (logits.is_cuda and logits.is_floating_point()) or target.is_floating_point():
            return self._original(logits, target, weight, reduction, ignore_index, label_smoothing)
        self.calls += 1
        return _InPlace.apply(logits, target, reduction)  # type: ignore[no-untyped-call]


class _InPlace(torch.autograd.Function):
    """The other arguments make a difference to values alone."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor, reduction: int) -> torch.Tensor:
        """Hold the logits, where the gradient now is, and one loss for each target."""
        ctx.save_for_backward(logits.detach())
        losses = torch.zeros(target.shape, dtype=logits.dtype, device=logits.device)
        return losses if reduction == _NONE else losses.sum()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[torch.Tensor, None, None]:
        """Give the gradient, scaled where it is."""
        (gradient,) = ctx.saved_tensors
        return gradient, None, None

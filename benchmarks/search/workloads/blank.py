"""What costs the host nothing: a virtual GPU computes nothing, so that values are of no use to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

_FILLING = (
    "normal_", "uniform_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_",
    "zeros_", "ones_", "constant_",
    # transformers has kept the functions themselves, which call these.
    "_no_grad_normal_", "_no_grad_uniform_", "_no_grad_trunc_normal_", "_no_grad_fill_", "_no_grad_zero_",
)  # fmt: skip
_FILLING_TENSORS = ("normal_", "uniform_", "zero_", "fill_")


def blank(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Give a `build_model` that leaves parameters as they come: filling them would take time and the host's memory."""

    def build_model() -> nn.Module:
        with _uninitialised():
            return build()

    return build_model


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Give a tensor that nobody writes to, so that it takes no memory however large it is."""
    return torch.empty(*shape, dtype=dtype)


def indices(*shape: int) -> torch.Tensor:
    """Give the same of whole numbers: tokens, classes."""
    return tensor(*shape, dtype=torch.long)


@contextmanager
def _uninitialised() -> Iterator[None]:
    with ExitStack() as stack:
        for name in _FILLING:
            stack.enter_context(patch.object(torch.nn.init, name, _same))
        for name in _FILLING_TENSORS:
            stack.enter_context(patch.object(torch.Tensor, name, _same))
        yield


def _same(filled: Any, *args: Any, **kwargs: Any) -> Any:
    return filled

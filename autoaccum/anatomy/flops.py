"""How many floating-point operations an operator takes, and of which kind they are."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from autoaccum.anatomy.traits import ATTENTION, DENSE_CONVOLUTION, MATMUL, OTHER_CONVOLUTION, RECURRENT

logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # it warns of each Triton that is missing

from torch.utils.flop_counter import conv_flop_count, flop_registry  # noqa: E402

_TIMES = {"_cudnn_rnn": 1, "_cudnn_rnn_backward": 2, "miopen_rnn": 1, "miopen_rnn_backward": 2}


def packet_of(func: Any) -> Any:
    """Give what an operator's overloads have in common, by which formulas are registered."""
    return getattr(func, "_overloadpacket", func)


def flops_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> tuple[str, float] | None:
    """Give the kind and the operations of one call, by torch's own formulas where they hold; None for all the rest."""
    packet = packet_of(func)
    name = packet.__name__
    if name == "convolution":
        source, weight, *_, transposed, _, groups = args
        return _convolution(source, weight, result, transposed, groups)
    if name == "convolution_backward":  # torch's formula counts the weight's gradient once for each group
        grad, source, weight, *_, transposed, _, groups, wanted = args
        kind, once = _convolution(source, weight, grad, transposed, groups)
        return kind, once * sum(wanted[:2])
    if name in _TIMES:
        return RECURRENT, _TIMES[name] * _recurrent(*args[:2])
    formula = flop_registry.get(packet)
    if formula is None:
        return None
    try:
        count = float(formula(*args, **kwargs, out_val=result))
    except AssertionError:  # some releases of torch know no attention with fewer keys than queries
        count = 0.0
    return (ATTENTION if "attention" in name else MATMUL), count


def _convolution(
    source: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, transposed: bool, groups: int
) -> tuple[str, float]:
    count = conv_flop_count(list(source.shape), list(weight.shape), list(result.shape), transposed)
    dense = groups == 1 and prod(weight.shape[2:]) > 1
    return (DENSE_CONVOLUTION if dense else OTHER_CONVOLUTION), float(count)


def _recurrent(source: torch.Tensor, weights: Sequence[torch.Tensor]) -> float:
    """Give the operations of a forward pass: each matrix of each layer and direction meets each token once."""
    tokens = source.numel() // source.shape[-1]
    return 2.0 * tokens * sum(weight.numel() for weight in weights if weight.dim() == 2)

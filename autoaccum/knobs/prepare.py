"""A plan's knobs for training: what is not turned yet, or one line that says what to do.

Nothing is remembered: the model and the optimizers show what is turned already, also after a copy or a restart.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from autoaccum.errors import AutoaccumWarning, UsageError
from autoaccum.knobs.names import sets_segments, words
from autoaccum.knobs.turn import Turned, computing, to_turn
from autoaccum.records import Knobs


def prepare(knobs: Knobs, model: nn.Module, optimizers: Sequence[Any] = ()) -> None:
    """Turn in place what is not turned yet; raise where a wrapper around the model has come too early."""
    if not knobs.options:
        return
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    inner = _unwrapped(model)
    missing = to_turn(knobs, inner)
    if missing.options and _is_spread(model):
        raise UsageError(
            f"the plan asks for {' and '.join(words(missing))}, which must be turned on before the model is wrapped: "
            f"call plan.prepare(model), then wrap it"
        )
    turning = replace(missing, tf32=knobs.tf32)
    if optimizers:  # their state has to follow the layout, also where the model was prepared before
        turning = replace(turning, optimizer=knobs.optimizer, channels_last=knobs.channels_last)
    Turned(turning, inner, optimizers, device)
    if knobs.expandable_segments and device.type == "cuda" and sets_segments(os.environ) is None:
        warnings.warn(
            "the plan was measured with expandable segments: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
            "before the training starts",
            AutoaccumWarning,
            stacklevel=3,
        )


def computed(knobs: Knobs, loss: Callable[[Any, Any], Any], device: torch.device) -> Callable[[Any, Any], Any]:
    """Give the loss with what surrounds its computation; the very same where that is nothing."""
    if knobs.precision is None:
        return loss

    def surrounded(model: Any, batch: Any) -> Any:
        with computing(knobs, device):
            return loss(model, batch)

    return surrounded


def _unwrapped(model: nn.Module) -> nn.Module:
    """Give the model within DDP; one that `torch.compile` wrapped shows by itself that it is compiled."""
    outer = getattr(model, "_orig_mod", model)
    return outer.module if isinstance(outer, nn.parallel.DistributedDataParallel) else model


def _is_spread(model: nn.Module) -> bool:
    """Whether the model is wrapped for several ranks already."""
    if isinstance(getattr(model, "_orig_mod", model), nn.parallel.DistributedDataParallel):
        return True
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel  # half a second to import

    return any(isinstance(module, FSDPModule | FullyShardedDataParallel) for module in model.modules())

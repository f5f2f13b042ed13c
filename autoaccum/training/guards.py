"""What makes accumulation impossible, told before the first update instead of after a wrong one."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from autoaccum.errors import UsageError


def as_optimizers(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Give the optimizers as a list; raise for one that cannot step once for a whole window."""
    optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    if not optimizers:
        raise UsageError("there is no optimizer: give one, or a list of them")
    for each in optimizers:
        name = type(each).__name__
        if not callable(getattr(each, "step", None)) or not hasattr(each, "param_groups"):
            raise UsageError(f"{name} is no optimizer: give a torch.optim.Optimizer, or a list of them")
        if _needs_closure(each):
            raise UsageError(
                f"{name} evaluates the loss again and again within a step: it cannot be accumulated for; "
                f"use an optimizer whose step() needs no closure"
            )
    return optimizers


def check_parameters(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Give all parameters whose gradients a window collects; raise where something else takes them away."""
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = {id(parameter): parameter for parameter in model.parameters()}
    held = check_gradients(optimizers, names)
    if not names.keys() & held.keys():
        raise UsageError("the optimizer holds none of the model's parameters: make it from model.parameters()")
    for key, parameter in parameters.items():
        _check_gradient(names[key], parameter)
    return list({**parameters, **held}.values())


def check_gradients(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str] = MappingProxyType({})
) -> dict[int, torch.Tensor]:
    """Give the optimizers' parameters by identity; raise where two step one, or something takes its gradient away."""
    held: dict[int, torch.Tensor] = {}
    for optimizer in optimizers:
        own = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        for key, parameter in own.items():
            name = names.get(key, "a parameter")
            if key in held:
                raise UsageError(f"{name} is in two optimizers, which would both step it: leave it to one of them")
            _check_gradient(name, parameter)
        held |= own
    return held


def check_options(clip: float | None, scaler: Any, precision: str | None = None) -> None:
    """Raise unless `clip` is a norm and `scaler` a GradScaler, where they are given; fp16 needs one."""
    if scaler is None and precision == "fp16":
        raise UsageError("the plan trains in fp16: give scaler=torch.amp.GradScaler()")
    if scaler is not None and not callable(getattr(scaler, "unscale_", None)):
        raise UsageError(f"scaler is a {type(scaler).__name__}: give a torch.amp.GradScaler")
    if clip is None:
        return
    if isinstance(clip, bool) or not isinstance(clip, int | float) or math.isnan(clip) or clip <= 0:
        raise UsageError(f"clip must be a norm above 0 (inf only measures it), not {clip!r}")


def _check_gradient(name: str, parameter: torch.Tensor) -> None:
    """Raise where a gradient would be used or moved before the window ends."""
    if getattr(parameter, "_in_backward_optimizers", None):
        raise UsageError(
            f"{name} is stepped by an optimizer within backward, once for each micro-batch: "
            f"accumulate without it (no _apply_optimizer_in_backward)"
        )
    if getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise UsageError(
            f"{name} has a hook from register_post_accumulate_grad_hook, which runs after each micro-batch: "
            f"an optimizer in it would step too early; remove the hook"
        )
    if hasattr(parameter, "main_grad"):
        raise UsageError(
            f"{name} has a main_grad, where fused kernels add gradients that .grad never sees: "
            f"turn gradient accumulation fusion off"
        )


def _needs_closure(optimizer: Any) -> bool:
    if isinstance(optimizer, torch.optim.LBFGS):
        return True
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty

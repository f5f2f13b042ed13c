"""How an optimizer's step is computed: parameter by parameter, in lists (foreach), or in one kernel (fused)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import _device_dtype_check_for_fused
from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

_FLAGS = ("foreach", "fused")
_ABSENT = object()


def obstacle(optimizers: Sequence[Any], kind: str) -> str | None:
    """Say why no optimizer can step so, for people; None where one can, and does not do so already."""
    reasons = [_obstacle(optimizer, kind) for optimizer in optimizers]
    return None if None in reasons else next(iter(reasons), "there is no optimizer")


def steps_so(optimizer: Any, kind: str) -> bool:
    """Whether all of the optimizer's parameters are stepped so already, as asked for or by torch's own choice."""
    return _asked_for(optimizer, kind) or (kind == "foreach" and _foreach_by_default(optimizer))


def turn_on(optimizer: Any, kind: str) -> Callable[[], None] | None:
    """Have the optimizer step so, with the state that it has; give what sets it back, or None where it cannot."""
    if _obstacle(optimizer, kind) is not None:
        return None
    places = _places(optimizer)
    before = [{flag: place.get(flag, _ABSENT) for flag in _FLAGS} for place in places]
    scaling = optimizer.__dict__.get("_step_supports_amp_scaling", _ABSENT)
    counters = dict(_counters(optimizer))
    for place in places:
        place.update({flag: flag == kind for flag in _FLAGS if flag in place or flag == kind})
    if kind == "fused":
        optimizer._step_supports_amp_scaling = True  # as its constructor would have set it
        _move_counters(optimizer)

    def undo() -> None:
        for place, flags in zip(_places(optimizer), before, strict=False):  # groups may have been added
            _restore(place, flags)
        _restore(optimizer.__dict__, {"_step_supports_amp_scaling": scaling})
        if kind == "fused":
            _move_counters_back(optimizer, counters)

    return undo


def _places(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [optimizer.defaults, *optimizer.param_groups]


def _asked_for(optimizer: Any, kind: str) -> bool:
    return isinstance(optimizer, torch.optim.Optimizer) and all(group.get(kind) for group in optimizer.param_groups)


def _obstacle(optimizer: Any, kind: str) -> str | None:
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        return f"{name} is no torch.optim.Optimizer"
    if kind not in optimizer.defaults:
        return f"{name} has no {kind} implementation"
    for done in ("fused", kind):
        if _asked_for(optimizer, done):
            return f"the optimizer is already {done}"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name} is differentiable, which excludes {kind}"
    if kind == "fused":
        return _fused_obstacle(optimizer)
    return "it is torch's default on CUDA" if _foreach_by_default(optimizer) else None


def _fused_obstacle(optimizer: torch.optim.Optimizer) -> str | None:
    name = type(optimizer).__name__
    for parameter in _parameters(optimizer):
        try:
            # Adagrad's is for the CPU only; torch itself says so in the same way.
            _device_dtype_check_for_fused(parameter, cuda_unsupported=isinstance(optimizer, torch.optim.Adagrad))
        except RuntimeError:
            where = f"{str(parameter.dtype).removeprefix('torch.')} on {parameter.device.type}"
            return f"{name} has no fused implementation for {where}"
    return None


def _foreach_by_default(optimizer: Any) -> bool:
    """Whether torch itself takes lists: where nobody asked for anything, and the kernels are for the device."""
    if not isinstance(optimizer, torch.optim.Optimizer) or "foreach" not in optimizer.defaults:
        return False
    if any(group.get(flag) is not None for group in optimizer.param_groups for flag in _FLAGS):
        return False
    return {parameter.device.type for parameter in _parameters(optimizer)} <= set(
        _get_foreach_kernels_supported_devices()
    )


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _counters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, Any]]:
    """Give the counter of steps of each parameter that has one."""
    for parameter in _parameters(optimizer):
        state = optimizer.state.get(parameter)
        if state and "step" in state:
            yield parameter, state["step"]


def _move_counters(optimizer: torch.optim.Optimizer) -> None:
    """Put the counters where a fused kernel reads them: on the device, in float32."""
    for parameter, step in _counters(optimizer):
        moved = torch.as_tensor(step).to(device=parameter.device, dtype=torch.float32)
        optimizer.state[parameter]["step"] = moved


def _move_counters_back(optimizer: torch.optim.Optimizer, before: dict[torch.Tensor, Any]) -> None:
    """Put the counters where they were; those made since where a step that is not fused wants them."""
    capturable = any(group.get("capturable") for group in optimizer.param_groups)  # wants them on the device
    for parameter, step in _counters(optimizer):
        like = before.get(parameter, step if capturable else torch.zeros(()))
        kept = step.to(like.device, like.dtype) if isinstance(like, torch.Tensor) else type(like)(step.item())
        optimizer.state[parameter]["step"] = kept


def _restore(place: Any, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if value is _ABSENT:
            place.pop(key, None)
        else:
            place[key] = value

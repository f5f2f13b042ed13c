"""A model and its optimizers with knobs turned, and the way back.

Everything happens in place: parameters stay the same objects, and optimizers hold them still.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import nn

from autoaccum.errors import UsageError
from autoaccum.knobs import checkpoint, steps, tf32
from autoaccum.knobs.names import words
from autoaccum.knobs.support import is_compiled
from autoaccum.records import Knobs

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Turned:
    """Turns the knobs; `undo` turns them back. What is on already stays as it is, before and after."""

    def __init__(self, knobs: Knobs, model: nn.Module, optimizers: Sequence[Any], device: torch.device) -> None:
        self.knobs = knobs
        # The usual scale overflows at first: skipped steps show neither the optimizer's time nor its state.
        self.scaler = torch.amp.GradScaler(device.type, init_scale=1.0) if knobs.precision == "fp16" else None
        self._device = device
        self._back = ExitStack()
        try:
            self._turn(model, optimizers)
        except BaseException:
            self.undo()
            raise

    def computing(self) -> AbstractContextManager[Any]:
        """Surround `loss(model, batch)` with autocast, where the precision asks for it."""
        return computing(self.knobs, self._device)

    def undo(self) -> None:
        """Turn everything back, the last first."""
        self._back.close()

    def _turn(self, model: nn.Module, optimizers: Sequence[Any]) -> None:
        # From the inside out: a compiled graph is made of what the others leave behind.
        if self.knobs.tf32:
            self._back.callback(tf32.turn_on())
        if self.knobs.channels_last:
            self._back.callback(_channels_last(model, optimizers))
        if self.knobs.checkpoint is not None:
            self._back.callback(_checkpoint(model, self.knobs.checkpoint))
        if self.knobs.optimizer is not None:
            for undo in _stepping(optimizers, self.knobs.optimizer):
                self._back.callback(undo)
        if self.knobs.compile and not is_compiled(model):
            self._back.callback(_compile(model))


def computing(knobs: Knobs, device: torch.device) -> AbstractContextManager[Any]:
    """Give what surrounds the computation of a loss: autocast, or nothing."""
    if knobs.precision is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[knobs.precision])


def to_turn(knobs: Knobs, model: nn.Module) -> Knobs:
    """Give what the model itself still needs of these knobs: what it has already is left out."""
    wanted = () if knobs.checkpoint is None else checkpoint.chosen_blocks(model, knobs.checkpoint)
    bare = knobs.checkpoint is not None and not checkpoint.checkpoints_itself(model)
    return Knobs(
        compile=knobs.compile and not is_compiled(model),
        checkpoint=knobs.checkpoint if bare and not (wanted and all(map(checkpoint.is_checkpointed, wanted))) else None,
        channels_last=knobs.channels_last and any(True for _ in _other_format(model)),
    )


def _checkpoint(model: nn.Module, which: str) -> Callable[[], None]:
    if checkpoint.checkpoints_itself(model):
        return lambda: None
    blocks = checkpoint.chosen_blocks(model, which)
    if not blocks:
        raise UsageError(f"{words(Knobs(checkpoint=which))[0]} is asked for, and no repeated blocks were found")
    return checkpoint.turn_on(blocks)


def _stepping(optimizers: Sequence[Any], kind: str) -> list[Callable[[], None]]:
    """Have those optimizers step so that can; raise where none can, nor does so already, or fused."""
    undos = [undo for optimizer in optimizers if (undo := steps.turn_on(optimizer, kind)) is not None]
    done = any(steps.steps_so(optimizer, each) for optimizer in optimizers for each in (kind, "fused"))
    if optimizers and not done:
        raise UsageError(f"a {kind} optimizer is asked for: {steps.obstacle(optimizers, kind)}")
    return undos


def _channels_last(model: nn.Module, optimizers: Sequence[Any]) -> Callable[[], None]:
    """Lay the model's images out with the channels last: what has four dimensions, and what optimizers keep of it."""
    turned = list(_other_format(model))
    for tensor in turned:
        _lay_out(tensor, torch.channels_last)
    _align_state(model, optimizers)

    def undo() -> None:
        for tensor in turned:
            _lay_out(tensor, torch.contiguous_format)
        _align_state(model, optimizers)

    return undo


def _other_format(model: nn.Module) -> Iterator[torch.Tensor]:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4 and not tensor.is_contiguous(memory_format=torch.channels_last):
            yield tensor


def _lay_out(tensor: torch.Tensor, format_: torch.memory_format) -> None:
    tensor.data = tensor.data.contiguous(memory_format=format_)
    if tensor.grad is not None:
        tensor.grad = tensor.grad.contiguous(memory_format=format_)


def _align_state(model: nn.Module, optimizers: Sequence[Any]) -> None:
    """Lay out what optimizers keep as its parameter is: fused kernels walk through both element by element."""
    for parameter in model.parameters():
        for optimizer in optimizers if parameter.dim() == 4 else ():
            state = getattr(optimizer, "state", {}).get(parameter, {})
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    state[key] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _compile(model: nn.Module) -> Callable[[], None]:
    """Compile the model's call in place, as `model.compile()` does."""

    # Which skips a frame of torch's own code: of an nn.Sequential it compiles nothing. This frame is not torch's.
    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    model._compiled_call_impl = torch.compile(call)

    def undo() -> None:
        model._compiled_call_impl = None
        torch.compiler.reset()

    return undo

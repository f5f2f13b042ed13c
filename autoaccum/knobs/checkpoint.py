"""Blocks that keep only their inputs, and compute the rest once more for the backward pass.

`forward` is replaced on the block itself, so that its class, its names in a state_dict and its hooks stay; the
replacement can be copied and pickled with the model. Random numbers are the same the second time, and normalisation
layers take their statistics only the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from autoaccum.knobs.blocks import repeated_blocks


class Checkpointed:
    """The forward of one block, with a checkpoint around it wherever there will be a backward pass."""

    def __init__(self, block: nn.Module) -> None:
        self.block = block
        self.__wrapped__: Callable[..., Any] = block.forward  # also what inspect.signature looks at
        self.replaced = block.__dict__.get("forward")  # one that the user had put there

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the block."""
        if not (self.block.training and torch.is_grad_enabled()):
            return self.__wrapped__(*args, **kwargs)
        return checkpoint(self._compute, *args, use_reentrant=False, **kwargs)

    def _compute(self, *args: Any, **kwargs: Any) -> Any:
        # A compiled graph changes buffers once by itself. A forward pass within a backward pass is the second one.
        # (checkpoint's own context_fn would do for that, but not where torch.compile gives up halfway through it.)
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
            return self.__wrapped__(*args, **kwargs)
        with _statistics_kept(self.block):
            return self.__wrapped__(*args, **kwargs)


def chosen_blocks(model: nn.Module, which: str) -> list[nn.Module]:
    """Give the blocks to checkpoint: "all" of the repeated ones, or "half" of them, every second."""
    return repeated_blocks(model)[:: 2 if which == "half" else 1]


def is_checkpointed(block: nn.Module) -> bool:
    """Whether the block was turned here."""
    return isinstance(block.__dict__.get("forward"), Checkpointed)


def checkpoints_itself(model: nn.Module) -> bool:
    """Whether the model checkpoints parts of itself already, as those of Hugging Face can."""
    flags = ("gradient_checkpointing", "is_gradient_checkpointing")
    return any(getattr(module, flag, False) is True for module in model.modules() for flag in flags)


def turn_on(blocks: Sequence[nn.Module]) -> Callable[[], None]:
    """Checkpoint these blocks, where they are not already; give what takes it back."""
    turned = [block for block in blocks if not is_checkpointed(block)]
    for block in turned:
        block.forward = Checkpointed(block)

    def undo() -> None:
        for block in turned:
            wrapper = block.__dict__.pop("forward", None)
            if isinstance(wrapper, Checkpointed) and wrapper.replaced is not None:
                block.forward = wrapper.replaced

    return undo


@contextmanager
def _statistics_kept(block: nn.Module) -> Iterator[None]:
    """Have normalisation layers write the statistics of a second pass into copies.

    Recomputation is broken off by an exception as soon as it has everything: the `finally` matters each time.
    """
    layers = [module for module in block.modules() if isinstance(module, _NormBase) and module.training]
    kept = [(layer, dict(layer._buffers)) for layer in layers]
    try:
        for layer, buffers in kept:
            layer._buffers.update({key: None if b is None else b.detach().clone() for key, b in buffers.items()})
        yield
    finally:
        for layer, buffers in kept:
            layer._buffers.update(buffers)

"""Which layer lets samples see each other: change one row, and watch the others.

A layer is guilty when the other rows of its output change while those of its input did not. Layers
are judged in the order in which they finish, so that the innermost one is found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from autoaccum import batch as batches
from autoaccum.equivalence.gradients import Bench, with_tensors
from autoaccum.equivalence.randomness import label

_Prints = tuple[torch.Tensor | None, ...]
_Call = tuple[str, _Prints, _Prints]  # a layer, and fingerprints of what went in and came out


def coupling_layer(bench: Bench, batch: Any, near: float) -> str | None:
    """Give the first layer whose output for a row depends on another row; None if there is none."""
    size = next((prime for prime in (11, 7, 5, 3) if prime <= batches.rows(batch)), 2)
    batch = batches.tile(batch, size)  # a prime, which no other dimension is a multiple of by chance

    def replaced(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != size:
            return tensor
        changed = tensor.clone()
        changed[0] = tensor[-1]
        return changed

    calls, others = _listen(bench, batch, size), _listen(bench, with_tensors(batch, replaced), size)
    for (name, before, after), (name2, before2, after2) in zip(calls, others, strict=False):
        if name != name2:
            return None  # the row decides which layers run: there is nothing to compare from here on
        seen = [_same(a, b, near) for a, b in zip(before, before2, strict=False) if a is not None and b is not None]
        gave = [_same(a, b, near) for a, b in zip(after, after2, strict=False) if a is not None and b is not None]
        if seen and all(seen) and not all(gave):
            return name
    return None


def _listen(bench: Bench, batch: Any, size: int) -> list[_Call]:
    calls: list[_Call] = []
    entered: list[_Prints] = []

    def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        # Taken now: a layer may change its input in place.
        entered.append(_prints((args, kwargs), size))

    def leaving(name: str) -> Callable[..., None]:
        return lambda module, args, output: calls.append((name, entered.pop(), _prints(output, size)))

    with ExitStack() as hooks:
        for name, module in bench.model.named_modules():
            hooks.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(leaving(label(name, module))).remove)
        bench.forward(batch)
    return calls


def _prints(value: Any, size: int) -> _Prints:
    return tuple(_print(tensor.detach(), size) for _, tensor in batches.tensors(value))


def _print(tensor: torch.Tensor, size: int) -> torch.Tensor | None:
    """Give a number for each row, also where rows are flattened with time, or come second."""
    if tensor.dim() > 1 and tensor.shape[0] % size and tensor.shape[1] == size:
        tensor = tensor.transpose(0, 1)
    if tensor.dim() == 0 or not tensor.numel() or tensor.shape[0] % size or tensor.is_complex():
        return None
    flat = tensor.reshape(size, -1).to(torch.float64)
    return flat @ torch.cos(torch.arange(flat.shape[1], dtype=torch.float64, device=flat.device))


def _same(one: torch.Tensor, other: torch.Tensor, near: float) -> bool:
    """Whether all rows but the first are the same."""
    if one.shape != other.shape:
        return False
    return bool((one - other)[1:].abs().max() <= near * (one.abs().max() + 1e-300))

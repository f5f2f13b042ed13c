"""Batches of any nesting: walk them, check their rows, move them to a device.

Tensors may stand in tuples, lists, named tuples, mappings (Hugging Face's BatchEncoding too) and
dataclasses; anything else that has a `.to(device)` is moved by it, and the rest is left alone.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from autoaccum.errors import WorkloadError

if TYPE_CHECKING:
    import torch


def tensors(batch: Any, name: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    """Give every tensor of `batch` with the expression that leads to it, such as `batch["ids"]`."""
    import torch

    if isinstance(batch, torch.Tensor):
        yield name, batch
    else:
        for step, value in _children(batch):
            yield from tensors(value, name + step)


def check_rows(batch: Any, size: int) -> None:
    """Raise, naming the tensor, unless every tensor of `batch` has `size` rows."""
    found = False
    for name, tensor in tensors(batch):
        found = True
        if tensor.dim() == 0:
            raise WorkloadError(f"make_batch({size}) returned {name} without rows: it is a scalar tensor")
        if tensor.shape[0] != size:
            shape = tuple(tensor.shape)
            raise WorkloadError(f"make_batch({size}) returned {name} with {shape[0]} rows (shape {shape}), not {size}")
    if not found and not _movable(batch):
        raise WorkloadError(f"make_batch({size}) returned no tensor: it returned {type(batch).__name__}")


def to_device(batch: Any, device: torch.device) -> Any:
    """Give `batch` with its tensors on `device`, of the same types as before."""
    import torch

    if isinstance(batch, torch.Tensor) or _movable(batch):
        return batch.to(device)
    return _rebuild(batch, lambda value: to_device(value, device))


def _movable(value: Any) -> bool:
    """Whether `value` knows how to move itself (PackedSequence, graphs); mappings are always walked."""
    return not isinstance(value, type | Mapping) and callable(getattr(value, "to", None))


def _children(batch: Any) -> Iterator[tuple[str, Any]]:
    if _movable(batch):
        return
    if isinstance(batch, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in batch.items())
    elif isinstance(batch, list | tuple):
        yield from ((f"[{index}]", value) for index, value in enumerate(batch))
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        yield from ((f".{field.name}", getattr(batch, field.name)) for field in dataclasses.fields(batch))


def _rebuild(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, MutableMapping):
        changed = copy.copy(batch)
        for key, value in batch.items():
            changed[key] = change(value)
        return changed
    if isinstance(batch, Mapping):
        return {key: change(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(change, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(change, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        clone = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(clone, field.name, change(getattr(batch, field.name)))
        return clone
    return batch

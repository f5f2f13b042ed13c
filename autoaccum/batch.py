"""Batches of any nesting: walk them, count and split their rows, move them to a device.

Tensors may stand in tuples, lists, named tuples, mappings (Hugging Face's BatchEncoding too) and
dataclasses; anything else that has a `.to(device)` is moved by it, and the rest is left alone.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from autoaccum.errors import UsageError, WorkloadError

if TYPE_CHECKING:
    import torch

_BY_HAND = "split it yourself, and give the step a list of micro-batches"


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


def rows(batch: Any) -> int:
    """Give the number of samples in `batch`: the rows that all its tensors have; scalar tensors are shared by all.

    >>> rows({"ids": torch.zeros(8, 128), "labels": torch.zeros(8)})
    8
    """
    found = [(name, tensor.shape[0]) for name, tensor in tensors(batch) if tensor.dim() > 0]
    found = found or [(name, array.shape[0]) for name, array in _arrays(batch)]
    if not found:
        raise UsageError(f"a batch of type {type(batch).__name__} has no rows to split by: {_BY_HAND}")
    first, size = found[0]
    for name, other in found:
        if other != size:
            raise UsageError(f"{first} has {size} rows and {name} has {other}: {_BY_HAND}")
    return int(size)


def sizes(size: int, planned: Sequence[int], most: int | None = None) -> Sequence[int]:
    """Give the sizes to split so many rows into: as planned, or as even as `most` allows where less is there or fits.

    >>> sizes(70, (32, 32, 32))
    [24, 23, 23]
    """
    most = max(planned) if most is None else most
    if size > sum(planned):
        raise UsageError(
            f"the batch has {size} rows and the plan takes {sum(planned)} for each rank: "
            f"set the loader's batch_size to plan.rank_batch"
        )
    if size == sum(planned) and most == max(planned):
        return planned
    steps = -(-size // most)
    small, larger = divmod(size, max(1, steps))
    return [small + 1] * larger + [small] * (steps - larger)


def split(batch: Any, sizes: Sequence[int]) -> Iterator[Any]:
    """Give views of `batch` with so many rows each, of the same types as the whole."""
    size = rows(batch)
    if sum(sizes) != size:
        raise UsageError(f"{size} rows cannot be split into {' + '.join(map(str, sizes))}")
    start = 0
    for each in sizes:
        yield _narrow(batch, start, start + each, size)
        start += each


def tile(batch: Any, size: int) -> Any:
    """Give a batch of `size` rows by repeating those of `batch`, or leaving some out."""
    import torch

    index = torch.arange(size) % rows(batch)
    return _pick(batch, index, rows(batch))


def to_device(batch: Any, device: torch.device) -> Any:
    """Give `batch` with its tensors on `device`, of the same types as before."""
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=device.type == "cuda")  # at once, from pinned memory
    if _movable(batch):
        return batch.to(device)
    return _rebuild(batch, lambda value: to_device(value, device))


def _narrow(value: Any, start: int, stop: int, size: int) -> Any:
    return _each(value, size, lambda part: part[start:stop])


def _pick(value: Any, index: torch.Tensor, size: int) -> Any:
    def pick(part: Any) -> Any:
        picked = [part[int(i)] for i in index] if isinstance(part, list | tuple) else part[index]
        return type(part)(picked) if isinstance(part, list | tuple) else picked

    return _each(value, size, pick)


def _each(value: Any, size: int, change: Callable[[Any], Any]) -> Any:
    """Rebuild `value` with whatever has `size` rows changed; the rest belongs to all rows."""
    shape = getattr(value, "shape", None)
    if shape is not None:  # tensors, and NumPy's arrays beside them
        return change(value) if len(shape) > 0 and shape[0] == size else value
    if _movable(value):
        raise UsageError(f"a {type(value).__name__} cannot be split: {_BY_HAND}")
    if isinstance(value, list) and len(value) == size and next(tensors(value), None) is None:
        return change(value)  # a name for each sample, say; a tuple is more likely a size
    return _rebuild(value, lambda part: _each(part, size, change))


def _arrays(batch: Any, name: str = "batch") -> Iterator[tuple[str, Any]]:
    """Give what has rows without being a tensor: NumPy's arrays."""
    if len(getattr(batch, "shape", ())) > 0:
        yield name, batch
    else:
        for step, value in _children(batch):
            yield from _arrays(value, name + step)


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

"""Counts the bytes of live tensors, storage by storage, as torch makes and frees them.

Every operation goes through `__torch_dispatch__`: what it returns and was not there before is new, and a weak
reference tells when it is gone. What the kernels need inside (oneDNN's scratch pads) is not seen.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(slots=True)
class _Storage:
    """One storage: its size, and how much of it was allocated under our eyes."""

    size: int = 0
    counted: int = 0


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what is allocated on the CPU within its blocks, and refuses what goes beyond the allowance."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self.allowed_bytes: int | None = None
        self._known: dict[int, _Storage] = {}  # by address
        self._references: dict[int, tuple[weakref.ref[Any], int]] = {}  # with the address, by their own identity
        # Filled by C code alone: Python code in a weak reference's callback would swallow a Ctrl-C.
        self._dead: deque[weakref.ref[Any]] = deque()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self._bury()
        fresh = func is torch.ops.aten.lift_fresh.default  # how torch.tensor and from_numpy hand over what they made
        # What any other operation is given and we have not seen being made was there before us.
        for storage in () if fresh else _storages((*args, *kwargs.values())):
            if storage._cdata not in self._known:
                self._meet(storage).size = storage.nbytes()
        result = func(*args, **kwargs)
        self._bury()
        # An array of NumPy's may be a whole data set that was there before; only `note` knows a batch.
        if not fresh or result.untyped_storage().resizable():
            self.note(result)
        return result

    def note(self, value: Any) -> None:
        """Count the tensors of `value` that are new, or have grown."""
        for storage in _storages((value,)):
            known = self._known.get(storage._cdata) or self._meet(storage)
            grown = storage.nbytes() - known.size
            if self.allowed_bytes is not None and grown > 0 and self.live_bytes + grown > self.allowed_bytes:
                raise torch.OutOfMemoryError(
                    f"tried to allocate {grown} bytes where tensors hold {self.live_bytes} "
                    f"of the {self.allowed_bytes} bytes that the budget leaves them"
                )
            known.size += grown
            known.counted += grown
            self.live_bytes += grown
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def reset(self) -> None:
        """Set the peak back to what is live now."""
        self._bury()
        self.peak_bytes = self.live_bytes

    def _meet(self, storage: torch.UntypedStorage) -> _Storage:
        reference = weakref.ref(storage, self._dead.append)
        self._references[id(reference)] = reference, storage._cdata
        self._known[storage._cdata] = met = _Storage()
        return met

    def _bury(self) -> None:
        while self._dead:
            _, address = self._references.pop(id(self._dead.popleft()))
            self.live_bytes -= self._known.pop(address).counted


def _storages(values: Iterable[Any]) -> Iterator[torch.UntypedStorage]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.device.type == "cpu" and value.layout is torch.strided:
                yield value.untyped_storage()
        elif isinstance(value, list | tuple):
            yield from _storages(value)

"""Devices for the user's own process, which must survive the trials and be left as it was."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch

from autoaccum.device.base import Device, Reading
from autoaccum.device.cpu import CpuDevice
from autoaccum.device.cuda import CudaDevice
from autoaccum.device.meter import LiveBytes
from autoaccum.errors import DeviceError
from autoaccum.records import DeviceInfo
from autoaccum.units import format_bytes
from autoaccum.virtual import control


class LiveDevice(Device, Protocol):
    """A device whose trials run among the user's own objects."""

    counts: bool  # whether Python counts the bytes, which slows the trials; it may be switched off

    def held_bytes(self) -> int:
        """Give what the process holds before any trial, the user's tensors included."""

    def note(self, batch: Any) -> None:
        """Count a batch, however it was made."""


class LiveCpuDevice(CpuDevice):
    """The main memory, by counting the bytes of live tensors.

    The kernel's limit is not for the user's process: oneDNN crashes when an allocation of its own fails. What counts
    is what was resident at the start, and the tensors that came since.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts = True
        self._meter = LiveBytes()

    def describe(self) -> DeviceInfo:
        """Say what is there and free; the same trial makes the same tensors each time."""
        return replace(super().describe(), repeatable=True)

    @contextmanager
    def limited(self, limit_bytes: int) -> Iterator[None]:
        """Refuse tensors beyond what the limit leaves them."""
        if limit_bytes <= self._overhead:
            held, limit = format_bytes(self._overhead), format_bytes(limit_bytes)
            raise MemoryError(f"the process already holds {held}, and the budget is {limit}")
        if not self.counts:
            yield
            return
        self._meter.allowed_bytes = limit_bytes - self._overhead
        with self._meter:
            yield

    def meter_exactly(self) -> None:
        """Do nothing: it is exact, and malloc's settings are the user's."""

    def held_bytes(self) -> int:
        """Give what was resident at the start."""
        return self._overhead

    def note(self, batch: Any) -> None:
        """Count a batch that may have come past torch's operations, from NumPy for instance."""
        if self.counts:
            self._meter.note(batch)

    def reset(self) -> None:
        """Forget the peak so far, and free what hangs in reference cycles."""
        gc.collect()
        self._meter.reset()

    def allocated_bytes(self) -> int:
        """Give the live bytes, on top of what was resident at the start."""
        return self._meter.live_bytes

    def read(self) -> Reading:
        """Give the peak of live bytes, on top of what was resident at the start."""
        peak = self._meter.peak_bytes
        return Reading(allocated_bytes=peak, reserved_bytes=peak, used_bytes=self._overhead + peak, retries=0)


class LiveCudaDevice(CudaDevice):
    """One GPU on which the process has a context, a current device and memory already."""

    counts = False

    def __init__(self, index: int) -> None:
        with torch.cuda.device(index):  # the current device remains the user's
            super().__init__(index)
        self.timed = not control.is_active() or control.has_time()

    def held_bytes(self) -> int:
        """Give the context and the live tensors; what the allocator keeps besides is there for trials."""
        return self._overhead() + torch.cuda.memory_allocated(self.torch_device)

    def note(self, batch: Any) -> None:
        """Do nothing: the allocator counts."""

    def _drop_workspaces(self) -> None:
        """Leave cuBLAS's workspaces: a CUDA graph of the user's may go on using them."""

    def _overhead_at_first(self, before: dict[str, int]) -> int:
        """Give 0, with a warning where the driver tells no more: the context was there before we could look."""
        if self._handle is None or self._nvml.held_by(self._handle, os.getpid()) is None:
            self.warnings.append(
                "the driver does not tell what this process holds: the memory of its CUDA context is not counted"
            )
        return 0


def open_live(place: torch.device) -> LiveDevice:
    """Give the device at `place`, where the user's model is."""
    if place.type == "cpu":
        return LiveCpuDevice()
    if place.type == "cuda":
        return LiveCudaDevice(torch.cuda.current_device() if place.index is None else place.index)
    raise DeviceError(f"the model is on {place}, which cannot be probed: move it to cpu or cuda")

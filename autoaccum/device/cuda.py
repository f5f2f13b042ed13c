"""NVIDIA GPUs: torch's allocator for the peaks, NVML for what the process holds besides.

device_used = overhead + reserved. The overhead (context, libraries) is invisible to torch: it is
what NVML says the process holds less what torch reserved.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property

import torch

from autoaccum.device import history
from autoaccum.device.base import Reading, Recorder
from autoaccum.device.energy import EnergyMeter
from autoaccum.device.nvml import Nvml
from autoaccum.errors import DeviceError
from autoaccum.oom import is_oom
from autoaccum.records import DeviceInfo


class CudaDevice:
    """One GPU, or one MIG slice, as torch numbers them."""

    kind = "cuda"
    default_share = 0.95
    timed = True

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)
        self.warnings: list[str] = []
        self._nvml = Nvml()
        before = self._nvml.used_by_uuid()
        self._make_context()
        self._properties = torch.cuda.get_device_properties(index)
        self._uuid = str(self._properties.uuid)
        self._handle = self._nvml.find(self._uuid)
        self._at_first = self._overhead_at_first(before)

    def describe(self) -> DeviceInfo:
        """Say what the GPU is and what this process may have of it: its own part, and what is free."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return DeviceInfo(
            kind=self.kind,
            name=self._properties.name,
            uuid=self._uuid,
            total_bytes=total,
            free_bytes=free + self._overhead() + torch.cuda.memory_reserved(self.torch_device),
            overhead_bytes=self._overhead(),
            overhead_told=self._held() is not None,
            capability=f"{self._properties.major}.{self._properties.minor}",
            multiprocessors=self._properties.multi_processor_count,
        )

    @contextmanager
    def limited(self, limit_bytes: int) -> Iterator[None]:
        """Have torch's allocator refuse what would go beyond `limit_bytes`, overhead included."""
        room = limit_bytes - self._overhead()
        if room <= 0:
            raise MemoryError("the CUDA context alone, before there is a model, is larger than the budget")
        # A lower limit that the process has set itself holds for its training too.
        before = memory_fraction(self.torch_device)
        fraction = min(before, room / self._properties.total_memory)
        torch.cuda.set_per_process_memory_fraction(fraction, self.torch_device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(before, self.torch_device)

    def meter_exactly(self) -> None:
        """Do nothing: torch's allocator counts exactly as it is."""

    def reset(self) -> None:
        """Forget the peaks, and the retries, so far."""
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        self._retries_before = self._retries()

    def read(self) -> Reading:
        """Give the allocator's peaks since the last reset."""
        reserved = torch.cuda.max_memory_reserved(self.torch_device)
        return Reading(
            allocated_bytes=torch.cuda.max_memory_allocated(self.torch_device),
            reserved_bytes=reserved,
            used_bytes=reserved + self._overhead(),
            retries=self._retries() - self._retries_before,
        )

    def allocated_bytes(self) -> int:
        """Give what the allocator has handed out now."""
        return torch.cuda.memory_allocated(self.torch_device)

    def recorded(self) -> AbstractContextManager[Recorder]:
        """Record the allocator's history within."""
        return history.recorded(self.torch_device)

    @property
    def energy_source(self) -> str | None:
        """Say where `joules` come from: "counter", "power", or None where there are none."""
        return self._energy.source

    def joules(self) -> float | None:
        """Give a counter of the energy that the whole GPU has used, also for others; None where NVML has none."""
        return self._energy.joules()

    def synchronize(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize(self.torch_device)

    def stamp(self) -> torch.cuda.Event:
        """Have the GPU note the time when its work gets here; the queue is not disturbed."""
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.torch_device))
        return event

    def seconds_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Give the time between two events."""
        return float(start.elapsed_time(end)) / 1000

    def release(self) -> None:
        """Give cached blocks back to the driver, and cuBLAS's workspaces, which would lie among the next trial's."""
        with suppress(RuntimeError):  # a broken context: the next trial says so
            self._drop_workspaces()
            torch.cuda.empty_cache()

    def _drop_workspaces(self) -> None:
        torch._C._cuda_clearCublasWorkspaces()

    @cached_property
    def _energy(self) -> EnergyMeter:
        """Made at first use: where NVML has no counter, a thread comes with it."""
        # Where work takes no time, on most virtual GPUs, it uses no energy either.
        return EnergyMeter(self._nvml, self._handle if self.timed else None)

    def _make_context(self) -> None:
        """Take this process's part of the device: its context, and torch's first block."""
        try:
            torch.cuda.set_device(self.torch_device)
            torch.empty(1, device=self.torch_device)
        except RuntimeError as error:
            why = "others leave no room to start in" if is_oom(error) else str(error).partition("\n")[0]
            raise DeviceError(f"{self.torch_device} is not usable: {why}") from error

    def _retries(self) -> int:
        return int(torch.cuda.memory_stats(self.torch_device).get("num_alloc_retries", 0))

    def _overhead(self) -> int:
        """Give what the process holds besides torch's memory, now if the driver tells, else as at first."""
        held = self._held()
        return self._at_first if held is None else max(0, held - torch.cuda.memory_reserved(self.torch_device))

    def _held(self) -> int | None:
        """Give what NVML says this process holds, if it does."""
        return None if self._handle is None else self._nvml.held_by(self._handle, os.getpid())

    def _overhead_at_first(self, before: dict[str, int]) -> int:
        """Give what the device's use grew by as the context was made; warn where it cannot be told."""
        reserved = torch.cuda.memory_reserved(self.torch_device)
        used = None if self._handle is None else self._nvml.used_bytes(self._handle)
        used_before = before.get(f"GPU-{self._uuid}", before.get(f"MIG-{self._uuid}"))
        if used is None or used_before is None:
            why = self._nvml.problem or "it does not answer for this device"
            self.warnings.append(
                f"NVML is not usable ({why}): free memory is CUDA's own figure, and the context's memory is not counted"
            )
            return 0
        return max(0, used - used_before - reserved)


def memory_fraction(device: torch.device) -> float:
    """Give the share of the device that the process may take; 1 where torch does not tell.

    An older torch cannot, and cudaMallocAsync gives something else.
    """
    tell = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    fraction = 1.0 if tell is None else float(tell(device))
    return fraction if 0 < fraction <= 1 else 1.0

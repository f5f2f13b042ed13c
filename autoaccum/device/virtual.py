"""A virtual GPU as a device: CUDA in every way but one, that there is no time on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from autoaccum.device.cuda import CudaDevice, memory_fraction
from autoaccum.errors import DeviceError
from autoaccum.virtual import control

_ENOUGH_BYTES = 1 << 46  # for any model


class VirtualDevice(CudaDevice):
    """The virtual GPU that this process was started on."""

    kind = "virtual"

    def __init__(self) -> None:
        if not control.is_active():
            raise DeviceError("the virtual GPU was not loaded: is LD_PRELOAD ignored here?")
        super().__init__(0)
        self.timed = control.has_time()
        if not self.timed:
            self.warnings.append(
                "no throughput: kernels of a virtual GPU take no time (gflops=N in its description simulates some)"
            )

    @contextmanager
    def unlimited(self) -> Iterator[None]:
        """Have room on the device for whatever is not training, for a while."""
        before = memory_fraction(self.torch_device)
        control.set_total_bytes(_ENOUGH_BYTES)
        torch.cuda.set_per_process_memory_fraction(1.0, self.torch_device)
        try:
            yield
        finally:
            control.set_total_bytes(self._properties.total_memory)
            torch.cuda.set_per_process_memory_fraction(before, self.torch_device)

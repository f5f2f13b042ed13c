"""A virtual GPU as a device: CUDA in every way but one, that there is no time on it."""

from __future__ import annotations

from autoaccum.device.cuda import CudaDevice
from autoaccum.errors import DeviceError
from autoaccum.virtual import control


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

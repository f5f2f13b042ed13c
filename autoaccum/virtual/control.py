"""Turns the knobs of the virtual GPU from inside a process that runs on it.

Tests use it to let another tenant come and go, to resize the device and to make an allocation fail:

    from autoaccum.virtual import control

    control.set_other_bytes(7 << 30)   # a neighbour takes 7 GiB of device 0, now
    control.fail_after(3)              # three more driver allocations pass, the next one fails
    control.used_bytes()               # what everybody holds on device 0

Devices are counted as NVML counts them: CUDA_VISIBLE_DEVICES does not renumber them here.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

from autoaccum.errors import DeviceError, UsageError

_TIMES = ("KERNEL_NS", "THREAD_NS", "GFLOPS", "COPY_GBPS")
_CORE = "libautoaccum_virtual.so"


@cache
def _core() -> ctypes.CDLL:
    try:
        core = ctypes.CDLL(_CORE, mode=os.RTLD_NOLOAD | os.RTLD_NOW)  # the copy that this process runs on
    except OSError:
        raise DeviceError("this process does not run on a virtual GPU: start it with virtual.environment()") from None
    core.autoaccum_virtual_used_bytes.restype = ctypes.c_uint64
    return core


def is_active() -> bool:
    """Tell whether this process runs on a virtual GPU."""
    try:
        _core()
    except DeviceError:
        return False
    return True


def has_time() -> bool:
    """Tell whether work takes simulated time here."""
    return any(float(os.environ.get(f"AUTOACCUM_VIRTUAL_{name}") or 0) for name in _TIMES)


def set_other_bytes(size: int, *, device: int = 0) -> None:
    """Let another tenant hold `size` bytes from now on."""
    _core().autoaccum_virtual_set_other_bytes(_checked(device), ctypes.c_uint64(size))


def set_total_bytes(size: int, *, device: int = 0) -> None:
    """Resize the device; what is held already stays held."""
    _core().autoaccum_virtual_set_total_bytes(_checked(device), ctypes.c_uint64(size))


def fail_after(allocations: int) -> None:
    """Let `allocations` more driver allocations of this process pass, then make one fail; -1 calls it off."""
    _core().autoaccum_virtual_fail_after(allocations)


def used_bytes(*, device: int = 0) -> int:
    """Give what everybody holds: contexts, allocations and the other tenant."""
    return int(_core().autoaccum_virtual_used_bytes(_checked(device)))


def _checked(device: int) -> int:
    count = int(_core().autoaccum_virtual_devices())
    if not 0 <= device < count:
        raise UsageError(f"there is no virtual device {device}: the devices here are 0 to {count - 1}")
    return device

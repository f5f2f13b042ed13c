"""The main memory as a device: metered by VmHWM, limited by RLIMIT_DATA, both of the kernel.

What counts is the whole process, as `top` shows it. `overhead_bytes` is what it held before there
was a model (the interpreter, torch's libraries); from there it may grow up to the limit.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from platform import processor

import torch

from autoaccum.device.base import Reading, Recorder
from autoaccum.device.cgroup import allowances
from autoaccum.errors import DeviceError
from autoaccum.records import DeviceInfo

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_EXACT_BYTES = 65536


class CpuDevice:
    """The main memory, as far as this process may have it."""

    torch_device = torch.device("cpu")
    timed = True
    default_share = 0.8  # the rest of the machine lives in the same memory
    # On most systems only root may read the processor's own counter (RAPL), and NVML does not know it.
    energy_source: str | None = None

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise DeviceError("the CPU can be probed on Linux only (its kernel meters and limits memory)")
        self.warnings: list[str] = []
        self._overhead = _status("VmRSS")
        self._glibc = _glibc()

    def describe(self) -> DeviceInfo:
        """Say what is there and free, within the limits of control groups."""
        limits = allowances()
        total, available = _meminfo("MemTotal"), _meminfo("MemAvailable")
        return DeviceInfo(
            kind="cpu",
            name=_cpu_name(),
            uuid=None,
            total_bytes=min([total, *(a.limit_bytes for a in limits)]),
            # This process's own memory is ours to use as well.
            free_bytes=min([available, *(a.free_bytes for a in limits)]) + self._overhead,
            overhead_bytes=self._overhead,
            repeatable=False,  # malloc and MKL keep memory, more or less of it
        )

    @contextmanager
    def limited(self, limit_bytes: int) -> Iterator[None]:
        """Let the process grow from what it holds now up to `limit_bytes`."""
        if limit_bytes <= self._overhead:
            raise MemoryError("the process alone, before there is a model, is larger than the budget")
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        # The kernel limits what is mapped, not what is resident; both grow alike from here on.
        data = _status("VmData") + max(0, limit_bytes - _status("VmRSS"))
        resource.setrlimit(resource.RLIMIT_DATA, (data if hard == resource.RLIM_INFINITY else min(data, hard), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def meter_exactly(self) -> None:
        """Have malloc return memory at once: the peak then follows the live tensors to 0.1 %."""
        if self._glibc is not None:
            self._glibc.mallopt(_M_MMAP_THRESHOLD, _EXACT_BYTES)
            self._glibc.mallopt(_M_TRIM_THRESHOLD, _EXACT_BYTES)

    def reset(self) -> None:
        """Set VmHWM back to what is resident now."""
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            warning = "the kernel does not let the peak be reset: peaks on the CPU are those of the largest size so far"
            if warning not in self.warnings:
                self.warnings.append(warning)

    def read(self) -> Reading:
        """Give the peak of resident memory since the last reset."""
        peak = _status("VmHWM")
        grown = max(0, peak - self._overhead)
        return Reading(allocated_bytes=grown, reserved_bytes=grown, used_bytes=peak, retries=0)

    def allocated_bytes(self) -> int:
        """Give what is resident now, beyond what was before there was a model."""
        return max(0, _status("VmRSS") - self._overhead)

    def recorded(self) -> AbstractContextManager[Recorder]:
        """Record nothing: malloc keeps no history."""
        return nullcontext(Recorder())

    def joules(self) -> float | None:
        """Give None: nothing that a user may read counts the energy."""
        return None

    def synchronize(self) -> None:
        """Do nothing: the CPU is never ahead of Python."""

    def stamp(self) -> float:
        """Read the clock that only goes on."""
        return time.perf_counter()

    def seconds_between(self, start: float, end: float) -> float:
        """Give their difference."""
        return end - start

    def release(self) -> None:
        """Return what malloc keeps for later."""
        if self._glibc is not None:
            self._glibc.malloc_trim(0)


def _status(key: str) -> int:
    return _kibibytes(Path("/proc/self/status"), key)


def _meminfo(key: str) -> int:
    return _kibibytes(Path("/proc/meminfo"), key)


def _kibibytes(path: Path, key: str) -> int:
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise DeviceError(f"{path} has no {key}: the CPU cannot be probed on this kernel")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()} ({os.cpu_count()} cores)"
    return processor() or "CPU"


def _glibc() -> ctypes.CDLL | None:
    """Give the C library, if it is one that has malloc_trim (musl has not)."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None

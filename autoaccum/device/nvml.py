"""NVML through pynvml: devices by UUID, never by index, and every reading optional.

An index means one thing to NVML and another to torch, because CUDA_VISIBLE_DEVICES renumbers; a
reading may be denied (MIG, containers), so each gives None instead of raising.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pynvml


class Nvml:
    """A session with the driver's management library; `problem` says why there is none."""

    def __init__(self) -> None:
        self.problem: str | None = None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.problem = str(error)

    def driver_version(self) -> str | None:
        """Give the driver's version."""
        return self._ask(pynvml.nvmlSystemGetDriverVersion)

    def used_by_uuid(self) -> dict[str, int]:
        """Give the memory in use on every device and MIG slice."""
        used: dict[str, int] = {}
        for handle in self._handles():
            uuid = self._ask(pynvml.nvmlDeviceGetUUID, handle)
            held = self.used_bytes(handle)
            if uuid is not None and held is not None:
                used[uuid] = held
        return used

    def find(self, uuid: str) -> Any | None:
        """Give the handle of the GPU or MIG slice with torch's bare `uuid`."""
        for prefix in ("GPU-", "MIG-"):
            handle = self._ask(pynvml.nvmlDeviceGetHandleByUUID, prefix + uuid)
            if handle is not None:
                return handle
        return None

    def used_bytes(self, handle: Any) -> int | None:
        """Give what all processes hold on the device."""
        info = self._ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        return None if info is None else int(info.used)

    def held_by(self, handle: Any, pid: int) -> int | None:
        """Give what the process holds on the device; None where the driver does not tell."""
        for process in self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []:
            if process.pid == pid and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
        return None

    def energy_joules(self, handle: Any) -> float | None:
        """Give what the whole device has used since the driver was loaded; Volta and later count it."""
        millijoules = self._ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return None if millijoules is None else millijoules / 1000

    def power_watts(self, handle: Any) -> float | None:
        """Give what the whole device draws now."""
        milliwatts = self._ask(pynvml.nvmlDeviceGetPowerUsage, handle)
        return None if milliwatts is None else milliwatts / 1000

    def _handles(self) -> Iterator[Any]:
        for index in range(self._ask(pynvml.nvmlDeviceGetCount) or 0):
            handle = self._ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            if handle is None:
                continue
            yield handle
            for slice_index in range(self._ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
                part = self._ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slice_index)
                if part is not None:
                    yield part

    def _ask(self, reading: Callable[..., Any], *arguments: Any) -> Any | None:
        if self.problem is not None:
            return None
        try:
            return reading(*arguments)
        except pynvml.NVMLError:
            return None

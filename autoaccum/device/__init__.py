"""What differs between machines, behind one small protocol; used where trials run.

base.py    the protocol, and the budget that all devices share
cuda.py    NVIDIA GPUs through torch's allocator and NVML
virtual.py the same on a GPU that is not there; placing.py builds models on it that are larger than the host
history.py what an update cannot do without, by the history of torch's allocator
live.py    both in the user's own process; meter.py counts live tensors there
nvml.py    every NVML reading, each of them optional
energy.py  joules from NVML's counter, or from its power
cpu.py     the main memory, limited by the kernel
cgroup.py  what a container allows
"""

from __future__ import annotations

import re
from dataclasses import replace

from autoaccum import virtual as rig  # the submodule of the same name would take its place
from autoaccum.device.base import Device, Reading
from autoaccum.errors import DeviceError, UsageError
from autoaccum.units import did_you_mean

__all__ = ["Device", "Reading", "check_name", "environment", "open_device"]

_NAME = re.compile(r"auto|cpu|cuda(:[0-9]+)?")
_VIRTUAL = "virtual:"
_COPY_MAX_BYTES = 64 << 10  # of what is larger nobody reads the values, and it would fill the host's memory


def check_name(name: str) -> None:
    """Raise unless `name` could be a device, without looking for it."""
    if name.startswith(_VIRTUAL):
        rig.parse(name.removeprefix(_VIRTUAL))
    elif _NAME.fullmatch(name) is None:
        kind, colon, number = name.partition(":")
        meant = did_you_mean(kind, ("auto", "cpu", "cuda", "virtual")).replace("? ", f"{colon}{number}? ")
        raise UsageError(
            f'unknown device "{name}": {meant}use auto, cpu, cuda, cuda:N or virtual:SIZE, such as virtual:24GiB'
        )


def environment(name: str) -> dict[str, str]:
    """Give what a child needs in its environment to find the device; a virtual GPU is built for it here."""
    if not name.startswith(_VIRTUAL):
        return {}
    return rig.environment(replace(rig.parse(name.removeprefix(_VIRTUAL)), copy_max_bytes=_COPY_MAX_BYTES))


def open_device(name: str) -> Device:
    """Give the device called "auto", "cpu", "cuda", "cuda:N" or "virtual:SIZE".

    N counts as CUDA_VISIBLE_DEVICES leaves it. A virtual GPU needs a process started with its `environment`.
    """
    check_name(name)
    import torch

    from autoaccum.device.cpu import CpuDevice
    from autoaccum.device.cuda import CudaDevice
    from autoaccum.device.virtual import VirtualDevice

    if name.startswith(_VIRTUAL):
        return VirtualDevice()
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return CpuDevice()
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no NVIDIA GPU"
        raise DeviceError(f"{name} is not usable: {why}; use --device cpu, or see `autoaccum env`")
    index = int(name.partition(":")[2] or 0)
    count = torch.cuda.device_count()
    if index >= count:
        raise DeviceError(f"{name} does not exist: torch sees {count} (cuda:0 to cuda:{count - 1})")
    return CudaDevice(index)

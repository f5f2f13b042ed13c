"""A GPU that is not there: a real CUDA build of PyTorch trains on it, and memory is accounted to the byte.

Libraries of our own stand where NVIDIA's would. Kernels compute nothing, so that a step takes milliseconds
whatever its size, while PyTorch's own allocator reserves, retries and runs out of memory as it would on the
device that was described. What this proves and what it cannot is in README.md beside this file.

    from autoaccum import virtual

    gpu = virtual.parse("8GiB,other=2GiB")
    subprocess.run([sys.executable, "train.py"], env={**os.environ, **virtual.environment(gpu)})

    src/        the libraries, in C
    elf.py      what a shared library needs from others
    wheel.py    the PyTorch that is installed
    build.py    libraries from sources, cached
    control.py  knobs inside the child
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoaccum.errors import UsageError
from autoaccum.units import MIB, did_you_mean, parse_bytes
from autoaccum.virtual import build, wheel

__all__ = ["VirtualGpu", "environment", "parse"]

DEFAULT_CONTEXT_BYTES = 256 * MIB
DEFAULT_CAPABILITY = 8.0
DEFAULT_MULTIPROCESSORS = 108
DEFAULT_WORKSPACE_SHARE = 1.5  # found by benchmarks/rehearse; docs/rehearse.md
DEFAULT_IDLE_WATTS = 50.0
DEFAULT_BUSY_WATTS = 300.0
MAX_DEVICES = 16
_SIZES = ("context", "other", "cudnn-workspace")
_NUMBERS = {  # with an example of each
    "cudnn-share": 1.5, "gflops": 19500, "kernel-ns": 3000, "idle-watts": 50, "busy-watts": 300,
}  # fmt: skip
_CARD = {  # how it is written, and what is said where it is not
    "cc": (r"[0-9]{1,2}\.[0-9]", "a compute capability: write one such as cc=8.6"),
    "sms": (r"[1-9][0-9]{0,3}", "a number of multiprocessors: write a whole one such as sms=80"),
}
_EXAMPLE = "write a size and what differs from the defaults, such as 24GiB or 8GiB,context=512MiB,other=2GiB"


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualGpu:
    """One device; the defaults resemble an A100 with nobody else on it and no simulated time.

    >>> VirtualGpu(total_bytes=24 * 2**30, other_bytes=2 * 2**30).context_bytes
    268435456
    """

    total_bytes: int
    context_bytes: int = DEFAULT_CONTEXT_BYTES  # what CUDA takes for itself, once per process
    other_bytes: int = 0  # what another tenant holds
    name: str = "autoaccum virtual GPU"
    capability: str = f"{DEFAULT_CAPABILITY:.1f}"
    multiprocessors: int = DEFAULT_MULTIPROCESSORS
    cudnn_workspace_bytes: int = 0  # what each cuDNN plan asks for
    cudnn_workspace_share: float = DEFAULT_WORKSPACE_SHARE  # and of input and output, for the gradient of wide kernels
    kernel_ns: float = 0.0  # simulated time: per launch
    thread_ns: float = 0.0  # and per thread of a launch
    gflops: float = 0.0  # speed of matrix products and convolutions; 0: they take no time
    copy_gbps: float = 0.0  # speed of copies in GB/s; 0: they take no time
    copy_max_bytes: int | None = None  # larger copies to the device move nothing; None: all of them move
    idle_watts: float = DEFAULT_IDLE_WATTS  # power, as NVML tells it
    busy_watts: float = DEFAULT_BUSY_WATTS
    state_file: Path | None = None  # processes that name the same file share the device


def parse(text: str) -> VirtualGpu:
    """Give the device that `text` describes: a size, then what differs from the defaults.

    >>> parse("8GiB,context=512MiB,other=2GiB").other_bytes
    2147483648
    """
    size, *settings = (part.strip() for part in text.split(","))
    if not size or "=" in size:
        raise UsageError(f'"{text}" does not begin with a size: {_EXAMPLE}')
    chosen: dict[str, float] = {}
    for setting in settings:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not value:
            raise UsageError(f'"{setting}" in "{text}" is not a setting: {_EXAMPLE}')
        if key in chosen:
            raise UsageError(f'"{text}" sets {key} twice: {_EXAMPLE}')
        chosen[key] = _setting(key, value)
    total = parse_bytes(size)
    context = chosen.get("context", DEFAULT_CONTEXT_BYTES)
    other = chosen.get("other", 0)
    if context + other >= total:
        raise UsageError(f'"{text}" leaves no memory to train in: the context and the other tenant take all of it')
    idle = chosen.get("idle-watts", DEFAULT_IDLE_WATTS)
    busy = chosen.get("busy-watts", DEFAULT_BUSY_WATTS)
    if idle > busy:
        raise UsageError(f'"{text}" draws {idle:g} W when idle and {busy:g} W when busy: set busy-watts, too')
    return VirtualGpu(
        total_bytes=total,
        context_bytes=int(context),
        other_bytes=int(other),
        capability=f"{chosen.get('cc', DEFAULT_CAPABILITY):.1f}",
        multiprocessors=int(chosen.get("sms", DEFAULT_MULTIPROCESSORS)),
        cudnn_workspace_bytes=int(chosen.get("cudnn-workspace", 0)),
        cudnn_workspace_share=chosen.get("cudnn-share", DEFAULT_WORKSPACE_SHARE),
        kernel_ns=chosen.get("kernel-ns", 0.0),
        gflops=chosen.get("gflops", 0.0),
        idle_watts=idle,
        busy_watts=busy,
    )


def _setting(key: str, value: str) -> float:
    known = (*_SIZES, *_CARD, *_NUMBERS)
    if key not in known:
        meant = did_you_mean(key, known)
        raise UsageError(f'"{key}" is not a setting of a virtual GPU: {meant}known are {", ".join(known)}')
    if key in _SIZES:
        return 0 if value == "0" else parse_bytes(value)
    if key in _CARD:
        pattern, otherwise = _CARD[key]
        if re.fullmatch(pattern, value) is None:
            raise UsageError(f'"{key}={value}" is not {otherwise}')
        return float(value)
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UsageError(f'"{key}={value}" is not a number: write one of 0 or more, such as {key}={_NUMBERS[key]}')
    return number


def environment(gpu: VirtualGpu | Sequence[VirtualGpu]) -> dict[str, str]:
    """Give the variables to add to a child's environment, so that it finds these devices and no others.

    The libraries are built if this has not been done before. An LD_PRELOAD that is set here already is kept,
    behind ours. What belongs to a process is that of the first device: the simulated time, the workspace, the
    size of copies and the state file.

    >>> env = {**os.environ, **environment(VirtualGpu(total_bytes=8 << 30))}    # doctest: +SKIP
    """
    gpus = [gpu] if isinstance(gpu, VirtualGpu) else list(gpu)
    if len(gpus) > MAX_DEVICES:
        raise UsageError(f"there can be at most {MAX_DEVICES} virtual GPUs and {len(gpus)} were asked for")
    for each in gpus:
        if "," in each.name:
            raise UsageError(f'the name of a virtual GPU cannot have a comma: "{each.name}"')
    libraries = [str(path) for path in build.libraries(wheel.find())]
    kept = [path for path in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if not _is_ours(path)]
    return {
        "LD_PRELOAD": ":".join([*libraries, *kept]),
        "CUDA_VISIBLE_DEVICES": ",".join(str(i) for i in range(len(gpus))),
        "TRITON_LIBCUDA_PATH": str(Path(libraries[0]).parent),
        # PyTorch waits 10 s at exit for a thread that src/leave.c keeps from aborting the process.
        "TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT": os.environ.get("TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT", "1"),
        **{f"AUTOACCUM_VIRTUAL_{key}": value for key, value in _variables(gpus).items()},
    }


def _is_ours(path: str) -> bool:
    return path.endswith(".virtual.so")  # of a virtual GPU that this process itself runs on


def _variables(gpus: list[VirtualGpu]) -> dict[str, str]:
    first = gpus[0] if gpus else VirtualGpu(total_bytes=0)
    return {
        "DEVICES": str(len(gpus)),
        "TOTAL_BYTES": ",".join(str(g.total_bytes) for g in gpus),
        "CONTEXT_BYTES": ",".join(str(g.context_bytes) for g in gpus),
        "OTHER_BYTES": ",".join(str(g.other_bytes) for g in gpus),
        "NAME": ",".join(g.name for g in gpus),
        "CC": ",".join(g.capability for g in gpus),
        "SMS": ",".join(str(g.multiprocessors) for g in gpus),
        "IDLE_WATTS": ",".join(str(g.idle_watts) for g in gpus),
        "BUSY_WATTS": ",".join(str(g.busy_watts) for g in gpus),
        "CUDNN_WORKSPACE_BYTES": str(first.cudnn_workspace_bytes),
        "CUDNN_WORKSPACE_SHARE": str(first.cudnn_workspace_share),
        "KERNEL_NS": str(first.kernel_ns),
        "THREAD_NS": str(first.thread_ns),
        "GFLOPS": str(first.gflops),
        "COPY_GBPS": str(first.copy_gbps),
        "COPY_MAX_BYTES": "" if first.copy_max_bytes is None else str(first.copy_max_bytes),
        "STATE": str(first.state_file.absolute()) if first.state_file else "",
    }

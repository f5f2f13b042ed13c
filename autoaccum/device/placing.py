"""A model that is built on a virtual GPU: however large it is, it never is in the host's memory.

Each parameter moves to the device as its module registers it, so that what initialises it is a kernel, which there
does nothing. Buffers, and whatever else a constructor computes with, stay on the host until the model is moved:
values on the device read as zero.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from autoaccum.device.virtual import VirtualDevice
from autoaccum.oom import is_oom

_SMALL_BYTES = 64 << 10  # values of so few bytes are kept


def build_on(device: VirtualDevice, build: Callable[[], Any], begin: Callable[[], None]) -> Any:
    """Give what `build` builds, on the host as usual, but for large tensors without memory behind them.

    What cannot be built in this way (its constructor takes a parameter for a tensor of the host) is built as usual,
    after another `begin`.
    """
    try:
        with device.unlimited(), _registered_on(device.torch_device):
            built = build()
            if isinstance(built, nn.Module):
                _take_back(built)
            return built
    except Exception as error:
        if is_oom(error):
            raise
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
    finally:
        gc.collect()  # what was built and is not part of the model would not be on the device in training
        device.release()
        device.reset()
    print(f"build_model() does not run on the virtual GPU, and is run on the host: {said}", file=sys.stderr)
    begin()
    return build()


@contextmanager
def _registered_on(device: torch.device) -> Iterator[None]:
    def place(_: nn.Module, __: str, parameter: nn.Parameter) -> None:
        if type(parameter) is nn.Parameter and parameter.device.type == "cpu" and parameter.layout is torch.strided:
            parameter.data = parameter.data.to(device)

    hook = register_module_parameter_registration_hook(place)
    try:
        yield
    finally:
        hook.remove()


def _take_back(model: nn.Module) -> None:
    """Move the model to the host, so that moving it to the device gives it the places that it has in training."""
    for tensor in chain(model.parameters(), model.buffers()):
        if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.is_cuda and tensor.layout is torch.strided:
            tensor.data = tensor.data.cpu() if tensor.nbytes <= _SMALL_BYTES else _untouched(tensor)


def _untouched(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor of the host that nobody writes to: it has an address, and takes no memory."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)

"""What a window of training changes besides gradients, so that it can be run again: random generators and buffers.

Buffers are copied only where training changes them (a BatchNorm's statistics are small, a mask or a cache of
positions may be large): all of them before the first window, into main memory; from then on those seen to change,
and normalisation layers' in any case, for their kernels change them behind the back of the version counter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.modules.batchnorm import _NormBase

from autoaccum.errors import AutoaccumError
from autoaccum.generators import Generators


@dataclass(slots=True)
class _Buffer:
    """A buffer as it was when the window began."""

    module: torch.nn.Module
    key: str
    name: str
    tensor: torch.Tensor | None
    version: int
    copy: torch.Tensor | None

    def changed(self) -> bool:
        now = self.module._buffers.get(self.key)
        if now is not self.tensor:
            return True
        return now is not None and (now._version != self.version or not self._equals_copy(now))

    def _equals_copy(self, now: torch.Tensor) -> bool:
        return self.copy is None or torch.equal(now.detach().to(self.copy.device), self.copy)


class Rewind:
    """Remembers where a window began, and goes back there."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self._device = device
        self._places = [
            (module, key, f"{path}.{key}" if path else key)
            for path, module in model.named_modules()
            for key in module._buffers
        ]
        self._changing: set[str] | None = None  # unknown before the first window ended
        self._buffers: list[_Buffer] = []
        self._generators: Generators | None = None

    def mark(self) -> None:
        """Remember the present state as the beginning of a window."""
        self._generators = Generators.now([self._device])
        self._buffers = [self._remember(*place) for place in self._places]

    def learn(self) -> None:
        """See which buffers the window that ended has changed: only those need a copy from now on."""
        known = self._changing or set()
        changed = {buffer.name for buffer in self._buffers if buffer.name not in known and buffer.changed()}
        self._changing = known | changed

    def back(self) -> None:
        """Make the state what it was at the mark."""
        if self._generators is not None:
            self._generators.restore()
        for buffer in self._buffers:
            if not buffer.changed():
                continue
            if buffer.tensor is not None and buffer.copy is None:
                raise AutoaccumError(
                    f"out of memory, and the window cannot be repeated: buffer {buffer.name} changed for the first time"
                )
            if buffer.tensor is not None and buffer.copy is not None:
                with torch.no_grad():
                    buffer.tensor.copy_(buffer.copy)
            buffer.module._buffers[buffer.key] = buffer.tensor

    def _remember(self, module: torch.nn.Module, key: str, name: str) -> _Buffer:
        tensor = module._buffers.get(key)
        if tensor is None:
            return _Buffer(module, key, name, None, 0, None)
        copy = None
        if self._changing is None:
            copy = tensor.detach().to("cpu", copy=True)
        elif name in self._changing or (isinstance(module, _NormBase) and module.training):
            copy = tensor.detach().clone()
        return _Buffer(module, key, name, tensor, tensor._version, copy)

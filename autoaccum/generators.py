"""The random generators that training may draw from: read, and set back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch


@dataclass(frozen=True, slots=True)
class Generators:
    """The states of Python's, NumPy's and torch's generators, on the CPU and on the devices asked for."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: tuple[tuple[torch.device, torch.Tensor], ...]

    @classmethod
    def now(cls, devices: Sequence[torch.device] = ()) -> Generators:
        """Read the states."""
        return cls(
            python=random.getstate(),
            numpy=numpy.random.get_state(),
            cpu=torch.get_rng_state(),
            cuda=tuple((device, torch.cuda.get_rng_state(device)) for device in devices if device.type == "cuda"),
        )

    def restore(self) -> None:
        """Set them back."""
        random.setstate(self.python)
        numpy.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        for device, state in self.cuda:
            torch.cuda.set_rng_state(state, device)


def seed_all(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)

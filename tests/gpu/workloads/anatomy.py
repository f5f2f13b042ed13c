"""Models whose memory can be told by hand, each a Workload of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autoaccum import Workload

WIDTH = 1024  # a square of it is 4 MiB


def adam(model: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def plain_sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def rows(size: int) -> torch.Tensor:
    return torch.zeros(size, WIDTH)


def mean_square(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(model(batch)).square().mean()


def square(count: int = 1) -> nn.Module:
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)]
    return nn.Sequential(*layers) if count > 1 else layers[0]


class Flare(nn.Module):
    """Needs eight times its input for a moment."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.repeat(1, 8).sum()


class Residual(nn.Module):
    """Computes something between its modules, of which no hook tells."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch + torch.as_tensor(self.narrow(self.widen(batch).tanh()))


class Checkpointing(nn.Module):
    """Checkpoints its blocks by itself, by their forward alone."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(3))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            batch = checkpoint(block.forward, batch, use_reentrant=False)
        return batch


class Tied(nn.Module):
    """Reads and writes with the same weights, with statistics between."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.write = nn.Linear(WIDTH, WIDTH, bias=False)
        self.write.weight = self.read.weight

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.write(self.norm(self.read(batch))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.lstm(batch[None])[0])


teachers: list[nn.Module] = []


def with_teacher() -> nn.Module:
    teachers[:] = [square().requires_grad_(False)]
    return Tied()


def taught(model: Any, batch: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        wanted = teachers[0](batch)
    return torch.as_tensor(model(batch) - wanted).square().mean()


def forgetful(model: Any, batch: torch.Tensor) -> torch.Tensor:
    torch.cuda.memory._record_memory_history(None)
    return mean_square(model, batch)


def broken(model: Any, batch: torch.Tensor) -> torch.Tensor:
    raise ValueError("no loss today")


def compiled() -> nn.Module:
    model = nn.Sequential(square(), nn.Tanh(), square())
    model.compile(backend="eager")
    return model


def workload(build: Callable[[], nn.Module], loss: Any = mean_square, build_optimizer: Any = plain_sgd) -> Workload:
    def build_model() -> nn.Module:
        with torch.device("cuda"):  # where nothing computes the first weights
            return build()

    return Workload(build_model=build_model, make_batch=rows, loss=loss, build_optimizer=build_optimizer)


linear = workload(square, build_optimizer=adam)
stepping = workload(lambda: square(4), build_optimizer=adam)
forward = workload(lambda: nn.Sequential(square(), nn.Tanh(), nn.Tanh(), Flare()), lambda model, batch: model(batch))
blocks = workload(lambda: nn.Sequential(*(Residual() for _ in range(3))))
checkpointing = workload(Checkpointing)
student = workload(with_teacher, taught)
recurrent = workload(Recurrent, build_optimizer=adam)
opaque = workload(compiled)
recording = workload(square, forgetful)
raising = workload(square, broken)

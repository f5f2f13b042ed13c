"""All that a probe must leave as it was, as one dict that can be compared; written apart from what restores it."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional


class Restless(nn.Module):
    """A model that changes whatever a model can change in its forward pass."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.norm = nn.BatchNorm1d(width)
        self.frozen = nn.BatchNorm1d(width).eval()
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(width, 4)
        self.last.bias.requires_grad_(False)
        self.average: torch.Tensor
        self.register_buffer("average", torch.zeros(4), persistent=False)
        self.register_buffer("wide", torch.arange(3.0).expand(5, 3), persistent=False)
        self.plain = torch.zeros(4)
        self.calls = 0
        self.history: list[Any] = [[]]
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.history[0].append(len(inputs))
        self.late = random.random() + numpy.random.rand()
        noise = torch.rand((), generator=self.generator)
        output: torch.Tensor = self.last(self.drop(self.frozen(self.norm(self.first(inputs))))) + noise
        self.average = 0.9 * self.average + output.detach().mean(0)
        self.plain += 1
        self.first.register_forward_hook(_nothing)
        self.last.bias.requires_grad_(True)
        self.first.weight.register_hook(lambda _: None)  # type: ignore[no-untyped-call]
        return output


class Subject:
    """A model in the middle of its training: gradients here and there, optimizer state, a scheduler."""

    def __init__(self, *, trained: bool = True) -> None:
        torch.manual_seed(0)
        self.model = Restless()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1)
        self.batch = torch.randn(6, 16), torch.randint(4, (6,))
        if trained:
            loss(self.model, self.batch).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.scheduler.step()
            self.model.last.weight.grad = None

    @property
    def everything(self) -> dict[str, Any]:
        return everything(self.model, self.optimizer)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Give identities, values and settings, each under a name that says what differs."""
    found: dict[str, Any] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[f"tensor {name}"] = _tensor(tensor)
        found[f"requires_grad {name}"] = tensor.requires_grad
        found[f"grad {name}"] = None if tensor.grad is None else _tensor(tensor.grad)
        found[f"hooks {name}"] = list(tensor._backward_hooks or {})
    for name, module in model.named_modules():
        found[f"attributes {name}"] = {key: _value(value) for key, value in vars(module).items()}
    found["optimizer"] = {key: _value(value) for key, value in vars(optimizer).items()}
    found["rng"] = (
        random.getstate(),
        str(numpy.random.get_state()),
        bytes(torch.get_rng_state().numpy()),
        *([bytes(s.cpu().numpy()) for s in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else []),
    )
    found["settings"] = (
        torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled(),
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
    )  # fmt: skip
    return found


def _tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return id(tensor), tensor.data_ptr(), tuple(tensor.shape), str(tensor.dtype), values


def _value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, torch.Generator):
        return id(value), bytes(value.get_state().numpy())
    if isinstance(value, dict):
        return id(value), [(id(k) if isinstance(k, torch.Tensor) else k, _value(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return id(value), [_value(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else id(value)


def _nothing(*_: object) -> None:
    pass

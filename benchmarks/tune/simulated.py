"""A model on the virtual GPU that takes a time known beforehand: which case, AUTOACCUM_TUNE_CASE says by its seed.

Each of four blocks keeps some bytes for each sample and spends simulated time in products of small matrices: a part
in the forward pass, twice as much in the backward pass. How long depends on the size of the micro-batch by a curve of
one of five kinds, and on bf16 by a factor; checkpointing pays for the forward passes that it repeats; the optimizer's
step has a time of its own, and another one when fused.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from cases import BLOCKS, FORWARD, GFLOPS, Case, seeded
from torch import nn

_WIDTH, _ROWS = 64, 1 << 13
_ROW_SECONDS = 2 * _WIDTH * _WIDTH / (GFLOPS * 1e9)


class Bench(nn.Module):
    """Spends simulated time."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = (nn.Buffer(torch.zeros(n, _WIDTH)) for n in (_ROWS, _WIDTH, _ROWS))

    def spend(self, seconds: float) -> None:
        """Queue products that take so long."""
        rows = round(seconds / _ROW_SECONDS)
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            while rows > 0:
                now = min(rows, _ROWS)
                torch.mm(self.left[:now], self.right, out=self.out[:now])
                rows -= now


class _Work(torch.autograd.Function):
    """Keeps what a block keeps of its samples, and takes the time that it takes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bench: Bench, seconds: float, kept_bytes: int) -> torch.Tensor:
        """Take a third of the time."""
        ctx.bench, ctx.seconds = bench, seconds
        ctx.save_for_backward(torch.empty(kept_bytes, dtype=torch.uint8, device=x.device))
        bench.spend(seconds * FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Take the rest of it."""
        _ = ctx.saved_tensors  # a checkpoint computes them now
        ctx.bench.spend(ctx.seconds * (1 - FORWARD))
        return gradients[0], None, None, None


class Block(nn.Module):
    """One of the repeated blocks."""

    def __init__(self, case: Case, bench: Bench) -> None:
        super().__init__()
        self.case, self.linear = case, nn.Linear(1, 1)
        self.bench = [bench]  # in a list: it is no part of the block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute nothing, for a while."""
        bf16 = torch.is_autocast_enabled("cuda")
        seconds = self.case.micro_step(len(x), bf16=bf16) / BLOCKS
        kept_bytes = len(x) * self.case.sample_bytes // (2 if bf16 else 1)
        x = self.linear(x).float()
        return torch.as_tensor(_Work.apply(x, self.bench[0], seconds, kept_bytes))  # type: ignore[no-untyped-call]


class Model(nn.Module):
    """The blocks, and weights that have a gradient."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.bench = Bench()
        self.weights = nn.Parameter(torch.zeros(case.weight_bytes // 4))
        self.blocks = nn.Sequential(*(Block(case, self.bench) for _ in range(BLOCKS)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the blocks' output, to which the weights add their part."""
        return torch.as_tensor(self.blocks(x)) + self.weights.sum()


class TimedSgd(torch.optim.SGD):
    """SGD whose step takes simulated time."""

    def __init__(self, model: Model, case: Case) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.case, self.bench = case, model.bench

    def step(self, closure: Any = None) -> Any:
        """Take the time of a step, by how it is computed."""
        self.bench.spend(self.case.optimizer_seconds * (self.case.fused if self.param_groups[0]["fused"] else 1.0))
        return super().step(closure)


def the_case() -> Case:
    return seeded(int(os.environ["AUTOACCUM_TUNE_CASE"]))


def build_model() -> nn.Module:
    return Model(the_case())


def make_batch(size: int) -> torch.Tensor:
    return torch.zeros(size, 1)


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(model(batch)).mean()


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    if not isinstance(model, Model):
        raise TypeError("the model is not of this file")
    return TimedSgd(model, the_case())

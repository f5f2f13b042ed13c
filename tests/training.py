"""Small training problems in float64, and the full-batch loop that every split has to equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from autoaccum.plans import Plan

torch.set_num_threads(1)  # the problems are too small to share, and threads wait for each other on a busy machine

Loss = Callable[[nn.Module, Any], Any]
ROWS, FEATURES, CLASSES, LENGTH, VOCABULARY = 24, 6, 5, 7, 11


class TokenModel(nn.Module):
    """Logits for each token of ragged sequences; labels of -100 are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(VOCABULARY, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.mix(self.embed(ids))[0]))


def classifier(*inner: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), *inner, nn.Tanh(), nn.Linear(8, CLASSES)).double()


def samples(size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, FEATURES, dtype=torch.float64, generator=generator)
    return inputs, torch.randint(CLASSES, (size,), generator=generator)


def ragged(size: int, seed: int = 0, empty: Iterable[int] = ()) -> dict[str, torch.Tensor]:
    """Sequences of 1 to LENGTH tokens; those in `empty` have none."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (size, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (size, 1), generator=generator)
    for row in empty:
        lengths[row] = 0
    labels = torch.where(torch.arange(LENGTH) < lengths, ids.roll(1, dims=1), -100)
    return {"ids": ids, "labels": labels}


def mean_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def token_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    logits, labels = model(batch["ids"]).flatten(0, 1), batch["labels"].flatten()
    return functional.cross_entropy(logits, labels, reduction="sum"), (labels != -100).sum()


CLASS_WEIGHTS = torch.tensor([0.3, 2.0, 1.1, 0.7, 5.0], dtype=torch.float64)


def weighted_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = batch
    weights = CLASS_WEIGHTS.to(inputs.dtype)
    return functional.cross_entropy(model(inputs), labels, weights, reduction="sum"), weights[labels].sum()


def full_batch(model: nn.Module, optimizer: Any, loss: Loss, batches: Iterable[Any], clip: float | None = None) -> None:
    """Train as one would with enough memory: the definition of what is right."""
    for batch in batches:
        optimizer.zero_grad()
        value = loss(model, batch)
        value = value[0] / value[1] if isinstance(value, tuple) else value
        value.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def plan_of(*micro_batches: int, world_size: int = 1) -> Plan:
    return Plan(
        micro_batch=max(micro_batches),
        accumulation_steps=len(micro_batches),
        micro_batches=micro_batches,
        world_size=world_size,
        effective_batch=sum(micro_batches) * world_size,
    )


def distance(one: nn.Module, other: nn.Module) -> float:
    """How far two models' weights are apart, relative to their size."""
    a, b = (torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (one, other))
    return float((a - b).norm() / b.norm())

"""What the stepper costs beside the correct loop written by hand: time and peak memory of one update.

Time: both train a copy of the same model on the same batches, taking turns update by update in one process; the
figure is the median of the ratios of neighbours, with a 95 % interval from resampling. Memory: the peak of live tensor
bytes in an update, counted exactly. Writes results/stepper/.

python benchmarks/stepper.py [--updates 150]
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import nn
from torch.nn import functional

from autoaccum.device.meter import LiveBytes
from autoaccum.plans import Plan

CLIP, STEPS = 1.0, 8
Batch = Any


class Gpt(nn.Module):
    """Two transformer blocks over ragged sequences."""

    def __init__(self, width: int = 128, vocabulary: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Give the logits."""
        return torch.as_tensor(self.head(self.blocks(self.embed(ids))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def vectors(size: int) -> Batch:
    return torch.randn(size, 256), torch.randint(10, (size,))


def images(size: int) -> Batch:
    return torch.randn(size, 3, 32, 32), torch.randint(10, (size,))


def tokens(size: int) -> Batch:
    ids = torch.randint(512, (size, 32))
    lengths = torch.randint(8, 33, (size, 1))
    return ids, torch.where(torch.arange(32) < lengths, ids.roll(-1, 1), -100)


def mean_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def token_loss(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    logits, labels = model(batch[0]).flatten(0, 1), batch[1].flatten()
    return functional.cross_entropy(logits, labels, reduction="sum"), (labels != -100).sum()


def mean_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, sizes: list[int]) -> Callable[[Batch], float]:
    """Give the loop that people write when they write it correctly, for a mean over samples."""

    def update(batch: Batch) -> float:
        inputs, labels = batch
        total = torch.zeros(())
        for x, y in zip(torch.split(inputs, sizes), torch.split(labels, sizes), strict=True):
            loss = functional.cross_entropy(model(x), y) * (len(x) / len(inputs))
            torch.autograd.backward(loss)
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return total.item()

    return update


def tokens_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, sizes: list[int]) -> Callable[[Batch], float]:
    """Give the same for a mean over the tokens of a window, which must be counted first."""

    def update(batch: Batch) -> float:
        inputs, labels = batch
        count = (labels != -100).sum()
        total = torch.zeros(())
        for x, y in zip(torch.split(inputs, sizes), torch.split(labels, sizes), strict=True):
            loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / count
            torch.autograd.backward(loss)
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return total.item()

    return update


class Case(NamedTuple):
    """What is trained, and how."""

    name: str
    build: Callable[[], nn.Module]
    make_batch: Callable[[int], Batch]
    loss: Callable[[Any, Batch], Any]
    by_hand: Callable[[nn.Module, torch.optim.Optimizer, list[int]], Callable[[Batch], float]]
    micro_batch: int


# The micro-batches take about 5 ms on two cores, but for the last case: what is left when there is almost no work.
CASES = [
    Case("mlp, mean", mlp, vectors, mean_loss, mean_by_hand, 72),
    Case("cnn with BatchNorm, mean", cnn, images, mean_loss, mean_by_hand, 22),
    Case("gpt, ragged tokens", Gpt, tokens, token_loss, tokens_by_hand, 3),
    Case("mlp of micro-batches of 1, mean", mlp, vectors, mean_loss, mean_by_hand, 1),
]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def compare(case: Case, updates: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = case.build()
    twin = copy.deepcopy(model)
    plan = Plan.of(target_batch=case.micro_batch * STEPS, micro_batch=case.micro_batch)
    step = plan.stepper(model, adamw(model), case.loss, clip=CLIP)
    hand = case.by_hand(twin, adamw(twin), list(plan.micro_batches))
    turns: dict[str, Callable[[Batch], float]] = {"stepper": lambda batch: step(batch).loss, "hand": hand}
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for update in range(updates + 5):
        batch = case.make_batch(plan.rank_batch)
        order = list(turns) if update % 2 else list(turns)[::-1]
        for name in order:
            torch.manual_seed(update)  # the same dropout
            began = time.perf_counter()
            turns[name](batch)
            if update >= 5:
                seconds[name].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(seconds["stepper"], seconds["hand"], strict=True)]
    draws = sorted(median(random.choices(ratios, k=len(ratios))) for _ in range(1000))
    peaks = {name: peak_bytes(turn, case.make_batch(plan.rank_batch)) for name, turn in turns.items()}
    return {
        "case": case.name,
        "micro_batch": case.micro_batch,
        "accumulation_steps": STEPS,
        "updates": updates,
        "hand_micro_step_ms": 1000 * median(seconds["hand"]) / STEPS,
        "hand_update_ms": 1000 * median(seconds["hand"]),
        "stepper_update_ms": 1000 * median(seconds["stepper"]),
        "time_ratio": median(ratios),
        "time_ratio_low": draws[25],
        "time_ratio_high": draws[974],
        "hand_peak_bytes": peaks["hand"],
        "stepper_peak_bytes": peaks["stepper"],
        "extra_bytes": peaks["stepper"] - peaks["hand"],
    }


def peak_bytes(update: Callable[[Batch], float], batch: Batch) -> int:
    meter = LiveBytes()
    with meter:
        update(batch)
    return meter.peak_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("results/stepper"))
    options = parser.parse_args()
    random.seed(0)
    table = pd.DataFrame([compare(case, options.updates) for case in CASES])
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / "stepper.csv", index=False, float_format="%.4f")
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()

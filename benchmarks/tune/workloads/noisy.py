"""A model that sleeps: as long for each sample whatever the micro-batch, with random pauses on top."""

import random
import time

import torch
from torch import nn
from torch.nn import functional

SAMPLE_SECONDS, PAUSE_SECONDS = 0.002, 0.02
_CHANCE = random.Random()  # of its own, and never seeded: every run has other noise


def build_model() -> nn.Module:
    return nn.Linear(16, 4)


def make_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 16), torch.randint(4, (size,))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, labels = batch
    pauses = sum(_CHANCE.random() < 0.1 for _ in range(len(inputs)))
    time.sleep(SAMPLE_SECONDS * len(inputs) + PAUSE_SECONDS * pauses)
    return functional.cross_entropy(model(inputs), labels)

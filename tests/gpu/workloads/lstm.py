"""A tagger of long sequences: two layers of a bidirectional LSTM through cuDNN."""

import torch
from torch import nn
from torch.nn import functional

WORDS, TAGS, LENGTH, WIDTH = 1000, 50, 512, 256


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.tags = nn.Linear(2 * WIDTH, TAGS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.words(ids))
        return torch.as_tensor(self.tags(states))


def build_model() -> nn.Module:
    return Tagger()


def make_batch(size: int) -> list[torch.Tensor]:
    return [torch.zeros(size, LENGTH, dtype=torch.long), torch.zeros(size, LENGTH, dtype=torch.long)]


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    ids, tags = batch
    return functional.cross_entropy(model(ids).flatten(0, 1), tags.flatten())

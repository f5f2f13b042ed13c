"""A two-layer LSTM that labels random sequences."""

import torch
from torch import nn

VOCABULARY, CONTEXT, WIDTH = 1000, 32, 256


class Tagger(nn.Module):
    """An embedding, the recurrent layers, and a head on the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Give the logits."""
        states, _ = self.layers(self.embed(ids))
        return torch.as_tensor(self.head(states[:, -1]))


def build_model() -> nn.Module:
    return Tagger()


def make_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(VOCABULARY, (size, CONTEXT)), torch.randint(20, (size,))


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)

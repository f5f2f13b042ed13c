"""A small vision transformer on random images, with an optimizer that steps parameter by parameter on the CPU."""

import torch
from torch import nn

PATCH, SIDE, WIDTH = 8, 64, 192


class Vit(nn.Module):
    """Patches, blocks, and a head on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.positions = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Give the logits."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return torch.as_tensor(self.head(self.blocks(x).mean(1)))


def build_model() -> nn.Module:
    return Vit()


def make_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 3, SIDE, SIDE), torch.randint(10, (size,))


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)

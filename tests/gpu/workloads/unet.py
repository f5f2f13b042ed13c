"""A small U-Net: each level keeps its features for the way up."""

from itertools import pairwise

import torch
from torch import nn

WIDTHS = (16, 32, 64)


def _convolutions(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU())


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_convolutions(b, a) for b, a in zip((1, *WIDTHS), WIDTHS, strict=False))
        self.up = nn.ModuleList(_convolutions(a + b, b) for b, a in pairwise(WIDTHS))
        self.shrink, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.mask = nn.Conv2d(WIDTHS[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for level, down in enumerate(self.down):
            x = down(x if level == 0 else self.shrink(x))
            kept.append(x)
        x = kept.pop()
        for up in reversed(self.up):
            x = up(torch.cat([self.grow(x), kept.pop()], dim=1))
        return torch.as_tensor(self.mask(x))


def build_model() -> nn.Module:
    return UNet()


def make_batch(size: int) -> dict[str, torch.Tensor]:
    return {"image": torch.zeros(size, 1, 256, 256), "mask": torch.zeros(size, 1, 256, 256)}


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(batch["image"]), batch["mask"])

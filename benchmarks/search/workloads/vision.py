"""Vision models: a transformer, and convolutional networks whose memory has different shapes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from blank import blank, indices, tensor
from torch import nn
from torch.nn import functional

from autoaccum import Workload

hf: Any = import_module("transformers")
VIT = hf.ViTForImageClassification


class Bottleneck(nn.Module):
    """The block of ResNet-50."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_normed(inside, width, 1), nn.ReLU(inplace=True),
            *_normed(width, width, 3, stride), nn.ReLU(inplace=True),
            *_normed(width, 4 * width, 1),
        )  # fmt: skip
        same = stride == 1 and inside == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(*_normed(inside, 4 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the sum of shortcut and body, rectified."""
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


class Inverted(nn.Module):
    """The block of MobileNetV2: wide inside, with a convolution for each channel."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        wide = 6 * inside
        self.same = stride == 1 and inside == out
        self.body = nn.Sequential(
            *_normed(inside, wide, 1), nn.ReLU6(inplace=True),
            *_normed(wide, wide, 3, stride, groups=wide), nn.ReLU6(inplace=True),
            *_normed(wide, out, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the body's output, on top of the input where it has the same shape."""
        return x + self.body(x) if self.same else torch.as_tensor(self.body(x))


class ConvNextBlock(nn.Module):
    """A 7x7 convolution for each channel, then an MLP over channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(width, width, 7, padding=3, groups=width)
        wide = 4 * width
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the input and what the block adds."""
        return x + torch.as_tensor(self.mlp(self.spatial(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class UNet(nn.Module):
    """Down and up again, with what was seen on the way down kept for the way up."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.down = nn.ModuleList(_double(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.bottom = _double(widths[-1], 2 * widths[-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths))
        self.up = nn.ModuleList(_double(2 * w, w) for w in reversed(widths))
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give two scores for each pixel."""
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([kept.pop(), grow(x)], dim=1))
        return torch.as_tensor(self.head(x))


def _normed(inside: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inside, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return convolution, nn.BatchNorm2d(out)


def _double(inside: int, out: int) -> nn.Module:
    parts = (*_normed(inside, out, 3), nn.ReLU(inplace=True), *_normed(out, out, 3), nn.ReLU(inplace=True))
    return nn.Sequential(*parts)


def _resnet50() -> nn.Module:
    layers: list[nn.Module] = [*_normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(inside, width, stride if number == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def _vgg() -> nn.Module:
    layers: list[nn.Module] = []
    inside = 3
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU(inplace=True)]
            inside = width
        layers.append(nn.MaxPool2d(2))
    first = (nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout())
    return nn.Sequential(*layers, nn.Flatten(), *first, nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))


def _mobilenet() -> nn.Module:
    layers: list[nn.Module] = [*_normed(3, 16, 3, 2), nn.ReLU6(inplace=True)]
    inside = 16
    for out, blocks, stride in ((24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)):
        for number in range(blocks):
            layers.append(Inverted(inside, out, stride if number == 0 else 1))
            inside = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def _convnext() -> nn.Module:
    layers: list[nn.Module] = []
    inside = 3
    for width, blocks, stride in ((96, 3, 4), (192, 3, 2), (384, 9, 2), (768, 3, 2)):
        layers += [nn.Conv2d(inside, width, stride, stride), *(ConvNextBlock(width) for _ in range(blocks))]
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def _vit() -> nn.Module:
    model: nn.Module = VIT(hf.ViTConfig(num_labels=1000))
    return model


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _images(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor(size, 3, 224, 224), indices(size)


def _named_images(size: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": tensor(size, 3, 224, 224), "labels": indices(size)}


def _masked_images(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor(size, 3, 256, 256), indices(size, 256, 256)


def _by_pixel(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, masks = batch
    return functional.cross_entropy(model(images), masks)


vit = Workload(build_model=blank(_vit), make_batch=_named_images)
resnet50 = Workload(build_model=blank(_resnet50), make_batch=_images, build_optimizer=_sgd)
vgg = Workload(build_model=blank(_vgg), make_batch=_images, build_optimizer=_sgd)
mobilenet = Workload(build_model=blank(_mobilenet), make_batch=_images, build_optimizer=_sgd)
convnext = Workload(build_model=blank(_convnext), make_batch=_images)
unet = Workload(build_model=blank(UNet), make_batch=_masked_images, loss=_by_pixel)

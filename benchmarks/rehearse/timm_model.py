"""A timm model, trained as in the public measurements; the variable TIMM_MODEL names it.

Their set-up is not documented, and was inferred: fp32, SGD with Nesterov momentum, the model's own image size, label
smoothing, cudnn.benchmark on, TF32 in matrix products.
"""

from __future__ import annotations

import os

import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy

NAME = os.environ["TIMM_MODEL"]
image = (3, 224, 224)  # until the model says which it takes


def build_model() -> torch.nn.Module:
    global image
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    model: torch.nn.Module = timm.create_model(NAME, pretrained=False)
    image = model.default_cfg.get("input_size", image)  # type: ignore[union-attr, operator]
    return model


def make_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(size, *image), torch.zeros(size, dtype=torch.long)


def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    smoothed: torch.Tensor = LabelSmoothingCrossEntropy(0.1)(model(images), labels)
    return smoothed


def build_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

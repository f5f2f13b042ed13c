"""Models that a CPU trains in seconds, with values: an MLP, a GPT, and a CNN whose convolutions are oneDNN's."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from autoaccum import Workload

hf: Any = import_module("transformers")
GPT2 = hf.GPT2LMHeadModel
_WORDS = 1000


def _mlp() -> nn.Module:
    blocks = [nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU()) for _ in range(12)]
    return nn.Sequential(*blocks, nn.Linear(256, 10))


def _gpt() -> nn.Module:
    model: nn.Module = GPT2(hf.GPT2Config(vocab_size=_WORDS, n_positions=128, n_embd=128, n_layer=4, n_head=4))
    return model


def _cnn() -> nn.Module:
    widths = (3, 32, 32, 64, 64)
    layers: list[nn.Module] = []
    for number, (inside, out) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(inside, out, 3, stride=1 + number % 2, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _rows(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 32, 256), torch.randint(10, (size, 32))


def _texts(size: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(_WORDS, (size, 128))
    return {"input_ids": tokens, "labels": tokens}


def _images(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 3, 64, 64), torch.randint(10, (size,))


mlp = Workload(build_model=_mlp, make_batch=_rows)
gpt = Workload(build_model=_gpt, make_batch=_texts)
cnn = Workload(build_model=_cnn, make_batch=_images)

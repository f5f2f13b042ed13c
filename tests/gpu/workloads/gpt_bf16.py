"""The small GPT under bf16 autocast."""

import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.gpu.workloads.gpt import build_model, build_optimizer, make_batch
from tests.gpu.workloads.gpt import loss as full_loss

__all__ = ["build_model", "build_optimizer", "loss", "make_batch"]


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return full_loss(model, batch)

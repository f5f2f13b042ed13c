"""Which knobs cannot be used with this model, optimizer and device, and why; in words for people."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._triton import has_triton_package

from autoaccum.knobs import steps, tf32
from autoaccum.knobs.blocks import repeated_blocks
from autoaccum.knobs.checkpoint import checkpoints_itself
from autoaccum.knobs.names import sets_segments

_IMAGE_LAYERS = (nn.Conv2d, nn.ConvTranspose2d)


def unsupported(model: nn.Module, optimizers: Sequence[Any], device: torch.device) -> dict[str, str]:
    """Give the reason for each name that cannot be turned, or would change nothing."""
    reasons = {
        "bf16": _bf16(model, device),
        "fp16": _fp16(model, device),
        "tf32": _tf32(device),
        "compile": _compile(model, device),
        "checkpoint": _checkpoint(model),
        "channels_last": _channels_last(model),
        "foreach": steps.obstacle(optimizers, "foreach"),
        "fused": _fused(model, optimizers),
        "expandable_segments": _expandable_segments(device),
    }
    return {name: reason for name, reason in reasons.items() if reason}


def _bf16(model: nn.Module, device: torch.device) -> str | None:
    if device.type == "cuda" and not _capability(device, 8):
        return "needs a GPU of compute capability 8.0 or newer"
    return _weights(model) or (None if device.type in ("cuda", "cpu") else "needs CUDA")


def _fp16(model: nn.Module, device: torch.device) -> str | None:
    return _weights(model) if device.type == "cuda" else "needs CUDA"


def _weights(model: nn.Module) -> str | None:
    """Say why autocast does not change what these weights are computed in."""
    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        sizes[parameter.dtype] += parameter.numel()
    dtype = sizes.most_common(1)[0][0] if sizes else torch.float32
    if dtype in (torch.bfloat16, torch.float16):
        return f"the weights are already {str(dtype).removeprefix('torch.')}"
    return "the weights are float64, which autocast leaves alone" if dtype is torch.float64 else None


def _tf32(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "needs CUDA"
    if not _capability(device, 8):
        return "needs a GPU of compute capability 8.0 or newer"
    return "it is already on" if tf32.is_on() else None


def _compile(model: nn.Module, device: torch.device) -> str | None:
    if is_compiled(model):
        return "the model is already compiled"
    if device.type not in ("cuda", "cpu"):
        return "needs CUDA, or the CPU"
    if device.type == "cuda":
        if not _capability(device, 7):
            return "needs a GPU of compute capability 7.0 or newer"
        if not has_triton_package():
            return "Triton is not installed"
    if not _found(*(("CC", "gcc", "clang") if device.type == "cuda" else ("CXX", "g++"))):
        return f"no {'C' if device.type == 'cuda' else 'C++'} compiler was found"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the headers of Python (Python.h) are not installed"
    return None


def is_compiled(model: nn.Module) -> bool:
    """Whether the model is compiled already, by `model.compile()` or by `torch.compile(model)`."""
    return model._compiled_call_impl is not None or hasattr(model, "_orig_mod")


def _checkpoint(model: nn.Module) -> str | None:
    if checkpoints_itself(model):
        return "the model checkpoints its blocks already"
    return None if repeated_blocks(model) else "no repeated blocks were found"


def _channels_last(model: nn.Module) -> str | None:
    layers = [module for module in model.modules() if isinstance(module, _IMAGE_LAYERS)]
    if not layers:
        return "the model has no Conv2d"
    # A kernel of one pixel is the same in both formats.
    if all(layer.weight.is_contiguous(memory_format=torch.channels_last) for layer in layers) and not all(
        layer.weight.is_contiguous() for layer in layers
    ):
        return "the weights are already channels_last"
    return None


def _fused(model: nn.Module, optimizers: Sequence[Any]) -> str | None:
    if any(getattr(module, "sparse", False) is True for module in model.modules()):
        return "fused optimizers take no sparse gradients"
    return steps.obstacle(optimizers, "fused")


def _expandable_segments(device: torch.device) -> str | None:
    if device.type != "cuda":
        return "needs CUDA"
    set_by = sets_segments(os.environ)
    return f"{set_by} already sets expandable_segments" if set_by else None


def _capability(device: torch.device, least: int) -> bool:
    """Whether the GPU is of this generation or newer; AMD's count otherwise, and have what is asked for here."""
    return torch.version.hip is not None or torch.cuda.get_device_capability(device)[0] >= least


def _found(variable: str, *commands: str) -> bool:
    chosen = os.environ.get(variable)
    return any(shutil.which(command) for command in ([chosen] if chosen else commands))

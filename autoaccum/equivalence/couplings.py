"""Cheap signs, after a search, that micro-batches will not add up to the full batch.

What is seen without running anything (BatchNorm), and one look at gradients on the device that training
will run on: 5 rows against 3 and 2. `autoaccum verify` says more, and for certain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from autoaccum import batch as batches
from autoaccum.device import Device
from autoaccum.equivalence.gradients import Bench
from autoaccum.equivalence.hypotheses import mismatch, relative, shares, solve
from autoaccum.equivalence.randomness import label
from autoaccum.generators import Generators
from autoaccum.training.stepper import Loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoaccum.trial import Subject

_SPLIT = (3, 2)
_LOOSE = 0.05  # half precision rounds, and a GPU adds in no fixed order


def warnings_of(subject: Subject, device: Device, largest_ok: int) -> list[str]:
    """Look at the model of a worker's trials, which is built if it is not there yet; never raises."""
    try:
        parts = subject.parts()
        return warnings_for(parts.model, parts.loss, parts.make_batch, device, largest_ok)
    except BaseException:  # the user's code may even call sys.exit()
        return []


def warnings_for(
    model: torch.nn.Module, loss: Loss, make_batch: Callable[[int], Any], device: Device, largest_ok: int
) -> list[str]:
    """Give what the report must say of samples that see each other; never raises."""
    found = batch_norms(model)
    if found or largest_ok < sum(_SPLIT) or device.describe().kind == "virtual":  # its kernels compute nothing
        return found
    generators = Generators.now([device.torch_device])
    try:
        batch = make_batch(sum(_SPLIT))
        batches.check_rows(batch, sum(_SPLIT))
        return _look(Bench(model, loss), batches.to_device(batch, device.torch_device))
    except Exception:
        return []
    finally:
        model.zero_grad(set_to_none=True)
        generators.restore()


def batch_norms(model: torch.nn.Module) -> list[str]:
    """Give the warning for layers that normalise over a batch, where they are in training mode."""
    layers = [
        label(name, each) for name, each in model.named_modules() if isinstance(each, _BatchNorm) and each.training
    ]
    if not layers:
        return []
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    verb = "normalise" if more else "normalises"
    return [
        f"{layers[0]}{more} {verb} over one micro-batch at a time, not over the effective batch: keep micro-batches "
        f"large enough for it, freeze its statistics, or use GroupNorm (SyncBatchNorm joins ranks, not micro-batches)"
    ]


def _look(bench: Bench, batch: Any) -> list[str]:
    full, again = bench.gradient(batch), bench.gradient(batch, seed=1)
    micros = [bench.gradient(part).vector for part in batches.split(batch, _SPLIT)]
    expected = shares(_SPLIT) if full.count is None else (1.0,) * len(_SPLIT)
    steady = relative(full.vector - again.vector, full.vector) < _LOOSE  # false for NaN, too
    if not steady or not mismatch(full.vector, micros, expected) > _LOOSE:
        return []
    _, residual, unique = solve(full.vector, micros)
    if unique and residual > _LOOSE:
        return [
            "the gradient of a batch is not a sum over its samples (a contrastive loss, or a layer that mixes rows?): "
            "accumulation will train otherwise than the full batch; `autoaccum verify FILE` says what it is"
        ]
    return [
        "the loss is not a mean over the samples (a mean over tokens, a sum, or class weights?): return "
        "(loss_sum, count), or accumulation weighs micro-batches wrongly; `autoaccum verify FILE` says more"
    ]

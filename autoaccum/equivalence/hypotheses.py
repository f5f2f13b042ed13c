"""What a loss is, from gradients alone: by which weights the micro-batches' make the full batch's.

A mean weighs micro-batches by their rows, a sum by ones, a mean over tokens by their tokens. Where no
weights will do, samples are coupled. Nothing of the model or the loss is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from autoaccum import batch as batches

_IGNORED = -100  # the label that torch's losses leave out, and Hugging Face's models with them


def relative(error: torch.Tensor, whole: torch.Tensor) -> float:
    """Give the size of `error` as a part of the whole's."""
    return float(error.norm() / whole.norm())


def mismatch(whole: torch.Tensor, parts: Sequence[torch.Tensor], weights: Sequence[float]) -> float:
    """Give how far the weighted sum of `parts` is from the whole, relatively."""
    total = sum((part * weight for part, weight in zip(parts, weights, strict=True)), torch.zeros_like(whole))
    return relative(total - whole, whole)


def solve(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> tuple[tuple[float, ...], float, bool]:
    """Give the weights that come nearest, what is left, and whether they are the only ones."""
    columns = torch.stack(list(parts), dim=1)
    # QR first: it keeps float64's precision, and leaves a system as small as the number of parts.
    q, r = torch.linalg.qr(columns)
    sizes = torch.linalg.svdvals(r)
    unique = len(whole) > len(parts) and bool(sizes[-1] > 1e-6 * sizes[0])
    weights = torch.linalg.pinv(r, rtol=1e-12) @ (q.T @ whole)
    return tuple(weights.tolist()), relative(columns @ weights - whole, whole), unique


def shares(numbers: Sequence[float]) -> tuple[float, ...]:
    """Give each number's part of their sum."""
    total = sum(numbers)
    return tuple(number / total for number in numbers) if total else tuple(0.0 for _ in numbers)


def counts(parts: Sequence[Any]) -> Iterator[tuple[float, ...]]:
    """Give what a loss over tokens may count in each of `parts`: labels that count, and ones in masks."""
    for tensors in zip(*([tensor for _, tensor in batches.tensors(part)] for part in parts), strict=True):
        if any(tensor.dim() == 0 for tensor in tensors):
            continue
        for start in (0, 1):  # a causal language model leaves out the first token
            if start and tensors[0].dim() < 2:
                continue
            cut = [tensor[:, start:] if start else tensor for tensor in tensors]
            if not tensors[0].is_floating_point() and not tensors[0].is_complex():
                yield tuple(float((tensor != _IGNORED).sum()) for tensor in cut)
            if all(bool(((tensor == 0) | (tensor == 1)).all()) for tensor in cut):
                yield tuple(float(tensor.sum()) for tensor in cut)


def constant_term(whole: torch.Tensor, one: Sequence[torch.Tensor], other: Sequence[torch.Tensor], near: float) -> bool:
    """Whether two splits of a sum are too large by the same vector for each micro-batch after the first."""
    first, second = ((sum(parts, torch.zeros_like(whole)) - whole) / (len(parts) - 1) for parts in (one, other))
    return relative(first, whole) > near and relative(first - second, first) < 1e3 * near

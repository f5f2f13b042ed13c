"""What is trained, and how; and the facts of it that memory and the recipe depend on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autoaccum.records import ModelInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What is trained, and how."""

    model: torch.nn.Module
    optimizers: Sequence[Any]
    make_batch: Callable[[int], Any]  # its rows are checked
    loss: Callable[[Any, Any], Any]

    def drop_gradients(self) -> None:
        """Have no gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_bytes(self) -> int:
        """Count the optimizers' state, as it is now."""
        return sum(map(_state_bytes, self.optimizers))


def model_info(parts: Parts) -> ModelInfo:
    """Give the facts of a model and its optimizer that memory and the recipe depend on."""
    parameters = list(parts.model.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    elements: Counter[str] = Counter()
    for parameter in trained:
        elements[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    groups = getattr(parts.optimizers[0], "param_groups", None) or [{}]
    betas = groups[0].get("betas")
    return ModelInfo(
        name=type(parts.model).__name__,
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        gradient_bytes=sum(p.numel() * p.element_size() for p in trained),
        gradient_dtype=elements.most_common(1)[0][0] if elements else "",
        optimizer=type(parts.optimizers[0]).__name__,
        beta1=float(betas[0]) if isinstance(betas, tuple | list) and betas else None,
        buffer_bytes=sum(buffer.numel() * buffer.element_size() for buffer in parts.model.buffers()),
        optimizer_state_bytes=parts.state_bytes() or None,
    )


def _state_bytes(optimizer: Any) -> int:
    state = getattr(optimizer, "state", None)
    kept = [each for each in state.values() if isinstance(each, dict)] if isinstance(state, Mapping) else []
    tensors = [value for each in kept for value in each.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

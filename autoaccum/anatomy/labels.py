"""What people call the modules of a model: repeated ones by one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from torch import nn

_COMPILED = "_orig_mod"  # where torch.compile keeps the module that it was given


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A module's place in its model."""

    name: str  # "h.3.mlp"; nothing for the model itself
    shown: str  # "h.*.mlp", where h.3 stands among others that are alike; "model" for the model itself
    kind: str  # its class
    traced: bool  # runs within a compiled graph: no hook of it is called


def labels_of(model: nn.Module) -> dict[nn.Module, Label]:
    """Give a label for each module, in the model's order; a module that has several names goes by the first."""
    found: dict[nn.Module, Label] = {}

    def walk(module: nn.Module, name: str, shown: str, traced: bool) -> None:
        if module in found:
            return
        traced = traced or getattr(module, "_compiled_call_impl", None) is not None
        kind = type(getattr(module, _COMPILED, module)).__name__
        found[module] = Label(name=name, shown=shown or "model", kind=kind, traced=traced)
        numbered = Counter(_likeness(child) for key, child in module.named_children() if key.isdigit())
        for key, child in module.named_children():
            if key == _COMPILED:
                walk(child, name, shown, True)
                continue
            star = "*" if key.isdigit() and numbered[_likeness(child)] > 1 else key
            walk(child, f"{name}.{key}".lstrip("."), f"{shown}.{star}".lstrip("."), traced)

    walk(model, "", "", False)
    return found


def _likeness(module: nn.Module) -> Hashable:
    """Give what modules have in common that are alike: their class, and the shapes of their parameters."""
    return type(module), tuple((name, tuple(each.shape)) for name, each in module.named_parameters())

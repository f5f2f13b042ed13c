"""The repeated blocks of a model: a transformer's layers, the residual blocks of all of a ResNet's stages.

The choice is by class. Blocks stand side by side, have parts of their own, and are mostly alike; what is only named
alike (a network's stages, each wider than the last, or its two towers) is taken where there is nothing better.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from torch import nn

_LISTS = (nn.Sequential, nn.ModuleList)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Give the blocks in the model's order, none within another; an empty list where nothing is repeated."""
    ranks: dict[type[nn.Module], int] = {}
    for parent in model.modules():
        for kind, siblings in _siblings(parent).items():
            if len(siblings) > 1:
                ranks[kind] = max(ranks.get(kind, 0), _rank(parent, kind, siblings))
    found = {kind: list(_outermost(model, kind)) for kind in ranks}
    if not found:
        return []
    # max() takes the first of equals, and modules() gives a parent before its children: the outermost.
    best = max(found, key=lambda kind: (ranks[kind], sum(map(_size, found[kind]))))
    return found[best]


def _siblings(parent: nn.Module) -> dict[type[nn.Module], list[nn.Module]]:
    """Give a module's children that may be blocks, by class: they have parts of their own, and parameters."""
    by_class: dict[type[nn.Module], list[nn.Module]] = defaultdict(list)
    for child in parent.children():
        if type(child) not in (nn.ModuleList, nn.ModuleDict) and next(child.children(), None) and _size(child):
            by_class[type(child)].append(child)
    return by_class


def _rank(parent: nn.Module, kind: type[nn.Module], siblings: list[nn.Module]) -> int:
    """Say how much siblings are like repeated blocks: 3 is most."""
    if kind is nn.Sequential:
        return 0  # the stages of a ResNet, or blocks whose author gave them no name
    if not isinstance(parent, _LISTS):
        return 1  # encoder and decoder, or two towers
    sizes = Counter(map(_size, siblings))
    return 3 if max(sizes.values()) > 1 else 2  # stages have a class in some models, and all differ in width


def _outermost(module: nn.Module, kind: type[nn.Module]) -> Iterator[nn.Module]:
    """Give the modules of this class that are in no other of it, each once."""
    seen: set[nn.Module] = set()

    def walk(parent: nn.Module) -> Iterator[nn.Module]:
        for child in parent.children():
            if child in seen:
                continue
            seen.add(child)
            if type(child) is kind:
                yield child
            else:
                yield from walk(child)

    return walk(module)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())

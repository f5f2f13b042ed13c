"""Where memory goes: what is on the device when a trial holds the most, kind by kind and module by module.

Sizes are what was asked of the allocator. What it adds (blocks rounded up, memory it keeps for later, holes between
blocks) is one kind of its own: the eight kinds add up to `reserved_bytes` exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoaccum.records import Record

LARGEST = 10  # so many rows of modules are worth a reader's time


@dataclass(frozen=True, kw_only=True, slots=True)
class Part(Record):
    """The activations of one module, or of all that are alike: `h.*.mlp`."""

    name: str  # dotted; "model" for the model's own forward, "loss" for what is computed outside of it
    kind: str  # the module's class, and nothing for the loss
    size_bytes: int
    count: int = 1  # of modules that hold something at the peak


@dataclass(frozen=True, kw_only=True, slots=True)
class Anatomy(Record):
    """The memory of one trial at the moment when most of it is in use."""

    micro_batch: int
    accumulation_steps: int
    parameter_bytes: int
    buffer_bytes: int  # and what else was there before the first batch, such as a teacher's weights
    gradient_bytes: int
    optimizer_bytes: int
    input_bytes: int  # the batch
    activation_bytes: int  # made in a forward pass, also in one that a checkpoint repeats
    temporary_bytes: int  # made in the backward pass or the optimizer's step; and the libraries' workspaces
    cached_bytes: int  # reserved and not in use at that moment, and what sizes are rounded up by
    allocated_bytes: int  # all but what is cached
    reserved_bytes: int  # the most in the whole trial, as its Sample has it
    moment: str  # "the forward pass, in lm_head", "the backward pass", "the optimizer's step" ...
    modules: tuple[Part, ...]  # the largest of those that activations belong to


def largest(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Give the largest of the parts, with those of one name and class taken together."""
    rows: dict[tuple[str, str], Part] = {}
    for part in parts:
        row = rows.get((part.name, part.kind), Part(name=part.name, kind=part.kind, size_bytes=0, count=0))
        rows[part.name, part.kind] = Part(
            name=part.name,
            kind=part.kind,
            size_bytes=row.size_bytes + part.size_bytes,
            count=row.count + part.count,
        )
    return tuple(sorted(rows.values(), key=lambda row: -row.size_bytes)[:LARGEST])

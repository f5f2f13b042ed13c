"""A plan: the answer of a probe, and where its training step begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from autoaccum.errors import UsageError
from autoaccum.records import Record


def rank_share(target_batch: int, world_size: int) -> int:
    """Give the samples of one rank; the ranks' shares are equal, or the target cannot be exact."""
    if target_batch % world_size:
        below = target_batch - target_batch % world_size
        choices = f"{below} or {below + world_size}" if below else str(world_size)
        raise UsageError(
            f"a target batch of {target_batch} cannot be shared equally by {world_size} ranks: take {choices}"
        )
    return target_batch // world_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan(Record):
    """Micro-batches whose sum over steps and ranks is the effective batch, exactly."""

    micro_batch: int  # the largest of micro_batches
    accumulation_steps: int
    micro_batches: tuple[int, ...]  # of one rank
    world_size: int
    effective_batch: int
    peak_bytes: int | None = None
    headroom_bytes: int | None = None
    samples_per_second: float | None = None
    measured: bool = False  # this micro-batch was run; else the figures are predictions
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def rank_batch(self) -> int:
        """The samples that one rank processes for one update: the loader's batch size."""
        return sum(self.micro_batches)

    @property
    def even(self) -> bool:
        """Whether all micro-batches have the same size."""
        return len(set(self.micro_batches)) == 1

    @classmethod
    def of(cls, *, target_batch: int, micro_batch: int, world_size: int = 1) -> Self:
        """Give the plan of those who know their numbers; the last micro-batch takes the rest.

        >>> Plan.of(target_batch=100, micro_batch=32).micro_batches
        (32, 32, 32, 4)
        """
        for name, value in (("target_batch", target_batch), ("micro_batch", micro_batch), ("world_size", world_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be a whole number of 1 or more, not {value}")
        rank_batch = rank_share(target_batch, world_size)
        whole, rest = divmod(rank_batch, micro_batch)
        micro_batches = (micro_batch,) * whole + ((rest,) if rest else ())
        return cls(
            micro_batch=micro_batches[0],
            accumulation_steps=len(micro_batches),
            micro_batches=micro_batches,
            world_size=world_size,
            effective_batch=target_batch,
        )

"""Target, models and budget to ranked plans. Pure: no torch, no files.

Every plan reaches the target exactly. With k steps the sizes of one rank differ by one sample at most, so
the largest is ceil(rank_batch / k): these are the only sizes worth probing, about 2 sqrt(rank_batch) of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoaccum.fit import TimeModel
from autoaccum.plans import Plan, rank_share
from autoaccum.records import Budget, MemoryModel, Sample

SPLITS = ("auto", "even", "uneven")
WORTH_UNEVEN = 1.05  # how much faster an uneven plan must be, for "auto" to prefer it
_MANY_MORE = 4  # times the steps, from which an even plan is not preferred to an uneven one
_MOST_PLANS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What the samples taught: the models, and what was measured."""

    samples: Sequence[Sample]
    memory: MemoryModel | None
    time: TimeModel | None
    budget: Budget


def candidates(rank_batch: int, split: str) -> tuple[int, ...]:
    """Give the micro-batch sizes that a plan can use, ascending.

    >>> candidates(12, "even")
    (1, 2, 3, 4, 6, 12)
    """
    sizes = set()
    steps = 1
    while True:
        size = -(-rank_batch // steps)
        if split != "even" or rank_batch % size == 0:
            sizes.add(size)
        if size == 1:
            break
        steps = -(-rank_batch // (size - 1))  # the first step count that gives a smaller size
    return tuple(sorted(sizes))


def solve(target_batch: int, world_size: int, split: str, fits: Callable[[int], bool], known: Known) -> list[Plan]:
    """Give the plans whose largest micro-batch fits, best first."""
    rank_batch = rank_share(target_batch, world_size)
    sizes = [size for size in candidates(rank_batch, split) if fits(size)]
    plans = [_plan(rank_batch, -(-rank_batch // size), world_size, known) for size in sizes]
    seconds = {plan.accumulation_steps: _seconds(plan, known) for plan in plans}

    fewest_even = min((plan.accumulation_steps for plan in plans if plan.even), default=0)

    def rank(plan: Plan) -> tuple[float, int]:
        # Where even plans take many times the steps, as for a prime target, evenness is no reason to take them.
        handicapped = split == "auto" and not plan.even and fewest_even <= _MANY_MORE * plan.accumulation_steps
        return seconds[plan.accumulation_steps] * (WORTH_UNEVEN if handicapped else 1.0), plan.accumulation_steps

    return sorted(plans, key=rank)


def shortlist(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Give the best plans, and the best even one in any case."""
    even = next((plan for plan in plans if plan.even), None)
    short = tuple(plans[:_MOST_PLANS])
    return short if even is None or even in short else (*short, even)


def _plan(rank_batch: int, steps: int, world_size: int, known: Known) -> Plan:
    size, larger = divmod(rank_batch, steps)
    micro_batches = (size + 1,) * larger + (size,) * (steps - larger)
    peak, measured = _peak(micro_batches[0], steps, known)
    seconds = known.time.update_seconds(micro_batches) if known.time else None
    return Plan(
        micro_batch=micro_batches[0],
        accumulation_steps=steps,
        micro_batches=micro_batches,
        world_size=world_size,
        effective_batch=sum(micro_batches) * world_size,
        peak_bytes=peak,
        headroom_bytes=None if peak is None else known.budget.limit_bytes - peak,
        samples_per_second=rank_batch * world_size / seconds if seconds else None,
        measured=measured,
    )


def _peak(size: int, steps: int, known: Known) -> tuple[int | None, bool]:
    """Give the peak at this size, the measured one before the predicted, and whether it ran."""
    ran = [s for s in known.samples if s.ok and s.micro_batch == size and (s.accumulation_steps > 1 or steps == 1)]
    if ran:
        return ran[-1].device_used_bytes, True
    return (known.memory.device_bytes(size) if known.memory else None), False


def _seconds(plan: Plan, known: Known) -> float:
    if known.time is None:
        return float(plan.accumulation_steps)
    return known.time.update_seconds(plan.micro_batches)

"""Target, models and budget to ranked plans. Pure: no torch, no files.

Every plan reaches the target exactly. With k steps the largest size of one rank is ceil(rank_batch / k) at least:
these are the only sizes worth probing, about 2 sqrt(rank_batch) of them. Where there is room for a little more,
the sizes of an uneven plan are multiples of 8, 4 or 2, and differ by that much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoaccum.fit import TimeModel
from autoaccum.plans import Plan, rank_share
from autoaccum.records import Budget, MemoryModel, Sample

SPLITS = ("auto", "even", "uneven")
WORTH_UNEVEN = 1.05  # how much faster an uneven plan must be, for "auto" to prefer it
_MANY_MORE = 4  # times the steps, from which an even plan is not preferred to an uneven one
_MOST_PLANS = 12
_ALIGNMENTS = (8, 4, 2, 1)  # what all sizes of an uneven split are multiples of, best first
_LEAST_UNITS = 4  # of its alignment in the smallest size: so none is more than a quarter larger, in memory or in time
_RETRIES = 2  # of the allocator, from which a trial, of two updates, had them all along


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


def splits(rank_batch: int, steps: int) -> list[tuple[int, ...]]:
    """Give the ways to split a rank's batch into so many steps, best aligned first, the plain one last.

    An even split is the only one for its steps.

    >>> splits(26, 3)
    [(10, 8, 8), (9, 9, 8)]
    """
    if rank_batch % steps == 0:
        return [(rank_batch // steps,) * steps]
    found = []
    for alignment in _ALIGNMENTS:
        units, rest = divmod(rank_batch, alignment)
        smallest, larger = divmod(units, steps)
        if rest == 0 and smallest >= (1 if alignment == 1 else _LEAST_UNITS):
            size = smallest * alignment
            found.append((size + alignment,) * larger + (size,) * (steps - larger))
    return found


def solve(target_batch: int, world_size: int, split: str, fits: Callable[[int], bool], known: Known) -> list[Plan]:
    """Give the plans whose largest micro-batch fits, best first: one for each size, and for each number of steps."""
    rank_batch = rank_share(target_batch, world_size)
    plans = [_plan(micro_batches, world_size, known) for micro_batches in _fitting(rank_batch, split, fits)]
    seconds = {plan.accumulation_steps: _cost(plan, known) for plan in plans}

    fewest_even = min((plan.accumulation_steps for plan in plans if plan.even), default=0)

    def rank(plan: Plan) -> tuple[float, int]:
        # Where even plans take many times the steps, as for a prime target, evenness is no reason to take them.
        handicapped = split == "auto" and not plan.even and fewest_even <= _MANY_MORE * plan.accumulation_steps
        return seconds[plan.accumulation_steps] * (WORTH_UNEVEN if handicapped else 1.0), plan.accumulation_steps

    return sorted(plans, key=rank)


def plainest(plan: Plan) -> Plan | None:
    """Give the plan of as many steps whose sizes are as near to each other as can be; None if it is that already.

    Sizes that differ more lie worse in each other's blocks: the plainest may run where an aligned one does not.
    """
    plain = splits(sum(plan.micro_batches), plan.accumulation_steps)[-1]
    if plain == plan.micro_batches:
        return None
    return replace(
        plan, micro_batch=plain[0], micro_batches=plain, measured=plan.measured and plain[0] == plan.micro_batch
    )


def shortlist(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Give the best plans, and the best even one in any case."""
    even = next((plan for plan in plans if plan.even), None)
    short = tuple(plans[:_MOST_PLANS])
    return short if even is None or even in short else (*short, even)


def _fitting(rank_batch: int, split: str, fits: Callable[[int], bool]) -> Iterator[tuple[int, ...]]:
    """Give the best aligned split that fits for each number of steps, fewest first."""
    above = rank_batch + 1
    for candidate in reversed(candidates(rank_batch, split)):
        for micro_batches in splits(rank_batch, -(-rank_batch // candidate)):
            largest = micro_batches[0]
            # More steps must save memory. The plain split always does; an aligned one may be as large as one before.
            if largest < above and fits(largest):
                above = largest
                yield micro_batches
                break


def _plan(micro_batches: tuple[int, ...], world_size: int, known: Known) -> Plan:
    steps, effective_batch = len(micro_batches), sum(micro_batches) * world_size
    peak, measured = _peak(micro_batches[0], steps, known)
    seconds = _seconds(micro_batches, known)
    return Plan(
        micro_batch=micro_batches[0],
        accumulation_steps=steps,
        micro_batches=micro_batches,
        world_size=world_size,
        effective_batch=effective_batch,
        peak_bytes=peak,
        headroom_bytes=None if peak is None else known.budget.limit_bytes - peak,
        samples_per_second=effective_batch / seconds if seconds else None,
        measured=measured,
    )


def _peak(size: int, steps: int, known: Known) -> tuple[int | None, bool]:
    """Give the peak at this size, the measured one before the predicted, and whether it ran."""
    ran = _ran(size, steps, known)
    if ran:
        return ran[-1].device_used_bytes, True
    return (known.memory.device_bytes(size) if known.memory else None), False


def _ran(size: int, steps: int, known: Known) -> list[Sample]:
    """Give the samples that vouch for a plan of this largest size: with accumulation, if it accumulates."""
    return [s for s in known.samples if s.ok and s.micro_batch == size and (s.accumulation_steps > 1 or steps == 1)]


def _cost(plan: Plan, known: Known) -> float:
    """Give what plans are ranked by: the seconds of one update, or its steps where nothing was timed."""
    seconds = _seconds(plan.micro_batches, known)
    return float(plan.accumulation_steps) if seconds is None else seconds


def _seconds(micro_batches: Sequence[int], known: Known) -> float | None:
    """Give the seconds of one update: predicted, or as measured where memory is so tight that it costs time."""
    if known.time is None:
        return None
    slowed = _slowed_seconds(micro_batches, known)
    return known.time.update_seconds(micro_batches) if slowed is None else slowed


def _slowed_seconds(micro_batches: Sequence[int], known: Known) -> float | None:
    """Give the measured seconds of one update where the largest size ran only with the allocator's retries, else None.

    The model is a line through sizes that have room. The smaller sizes of the plan follow the largest into the same
    full memory: they are taken to be as slow for each sample.
    """
    size = micro_batches[0]
    timed = [
        (sample, sample.step_seconds, sample.optimizer_seconds)
        for sample in _ran(size, len(micro_batches), known)
        if sample.step_seconds is not None and sample.optimizer_seconds is not None
    ]
    if not timed or any((sample.alloc_retries or 0) < _RETRIES for sample, _, _ in timed):
        return None
    sample, step_seconds, optimizer_seconds = timed[-1]
    computing = (step_seconds - optimizer_seconds) / sample.accumulation_steps
    return computing * sum(micro_batches) / size + optimizer_seconds

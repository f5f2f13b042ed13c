"""Which size to try next, and when to stop: a pure function of what was seen so far.

A strategy is any function like `double_then_bisect`; the pipeline calls it until it gives None, so
another search can take its place without a change elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2

from autoaccum.records import Bracket, Outcome, Sample, Trial

FIRST_SIZE = 2  # size 1 is special: kernels specialise, and BatchNorm refuses it
_TOO_LARGE = (Outcome.OOM, Outcome.KILLED, Outcome.TIMED_OUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What the search is for."""

    rank_batch: int  # no plan needs a larger micro-batch
    candidates: tuple[int, ...]  # the sizes that the solver can use, ascending
    find_max: bool = False  # the exact largest size, whether a plan needs it or not


Strategy = Callable[[Sequence[Sample], Goal], Trial | None]


def bracket(samples: Sequence[Sample]) -> Bracket:
    """Give the largest size that ran and the smallest larger one that did not."""
    searched = [s for s in samples if s.phase != "confirm"]
    largest = max((s.micro_batch for s in searched if s.ok), default=None)
    failed = [s.micro_batch for s in searched if s.outcome in _TOO_LARGE and s.micro_batch > (largest or 0)]
    return Bracket(largest_ok=largest, smallest_failed=min(failed, default=None))


def double_then_bisect(samples: Sequence[Sample], goal: Goal) -> Trial | None:
    """Double from 2 until a size does not fit, then bisect among the sizes that a plan can use."""
    seen = bracket(samples)
    low, high = seen.largest_ok or 0, seen.smallest_failed
    if high is None:
        size = max(FIRST_SIZE, 2 * low)
        if not goal.find_max:
            size = min(size, goal.rank_batch)
        return None if size <= low else _trial(size, goal, "grow")
    if low == 0:
        return None if high == 1 else _trial(1, goal, "shrink")
    between = _between(low, high, goal)
    return _trial(between[len(between) // 2], goal, "bisect") if between else None


def at_most(samples: Sequence[Sample], goal: Goal) -> int | None:
    """Give how many trials `double_then_bisect` may still need; None while there is no bound."""
    seen = bracket(samples)
    low, high = seen.largest_ok or 0, seen.smallest_failed
    if high is not None:
        return ceil(log2(len(_between(low, high, goal)) + 1)) if low else 1
    if goal.find_max:
        return None
    if low >= goal.rank_batch:
        return 0
    doublings = max(1, ceil(log2(goal.rank_batch / max(low, 1))))
    last_gap = _between(goal.rank_batch // 2, goal.rank_batch, goal)
    return doublings + ceil(log2(len(last_gap) + 1))


def _between(low: int, high: int, goal: Goal) -> Sequence[int]:
    if goal.find_max:
        return range(low + 1, high)
    return [size for size in goal.candidates if low < size < high]


def _trial(size: int, goal: Goal, phase: str) -> Trial:
    # A target that fits at once needs no accumulation, and then has more room.
    steps = 1 if size == goal.rank_batch and not goal.find_max else 2
    return Trial(micro_batch=size, accumulation_steps=steps, phase=phase)

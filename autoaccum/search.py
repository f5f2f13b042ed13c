"""Which size to try next, and when to stop: a pure function of what was seen so far.

A strategy is any function like `double_then_bisect`; the pipeline calls it until it gives None, so
another search can take its place without a change elsewhere.

Two questions are asked. Does the whole target fit at once, without accumulation? Then gradients are not resident
while activations are, and there is more room. If not: which is the largest size that fits with accumulation?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoaccum.records import Bracket, Outcome, Sample, Trial

FIRST_SIZE = 2  # size 1 is special: kernels specialise, and BatchNorm refuses it
_TOO_LARGE = (Outcome.OOM, Outcome.KILLED, Outcome.TIMED_OUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What the search is for."""

    rank_batch: int  # no plan needs a larger micro-batch
    candidates: tuple[int, ...]  # the sizes that the solver can use, ascending
    find_max: bool = False  # the exact largest size, whether a plan needs it or not
    certify: bool = False  # a size has not failed for certain until it failed in a fresh process


Strategy = Callable[[Sequence[Sample], Goal], Trial | None]


def bracket(samples: Sequence[Sample]) -> Bracket:
    """Give the largest size that ran and the smallest larger one that did not; what ran once can run."""
    searched = [s for s in samples if s.phase != "confirm"]
    largest = max((s.micro_batch for s in searched if s.ok), default=None)
    failed = [s.micro_batch for s in searched if s.outcome in _TOO_LARGE and s.micro_batch > (largest or 0)]
    return Bracket(largest_ok=largest, smallest_failed=min(failed, default=None))


def accumulating(samples: Sequence[Sample]) -> Bracket:
    """Give the bracket with accumulation; what does not even fit without it bounds it too."""
    return bracket([s for s in samples if s.accumulation_steps > 1 or not s.ok])


def double_then_bisect(samples: Sequence[Sample], goal: Goal) -> Trial | None:
    """Double from 2 until a size does not fit, then bisect among the sizes that a plan can use.

    A worker carries some memory over from size to size. Where that tells (`goal.certify`), sizes near the limit
    run in fresh processes, and the search does not end on a failure in a used one.
    """
    whole = [s for s in samples if s.accumulation_steps == 1]
    if any(s.ok for s in whole) and not goal.find_max:
        return None
    seen = accumulating(samples)
    low, high = seen.largest_ok or 0, seen.smallest_failed
    if high is None:
        size = _grown(low, goal)
        steps = 1 if size == goal.rank_batch and not whole else 2
        return Trial(micro_batch=size, accumulation_steps=steps, phase="grow")
    between = _between(low, high, goal)
    if between:
        return Trial(micro_batch=between[len(between) // 2], phase="bisect", fresh=goal.certify)
    # A size that was killed or timed out is not provoked again.
    failures = [s for s in samples if s.micro_batch == high]
    if goal.certify and not any(s.fresh or s.outcome is not Outcome.OOM for s in failures):
        steps = failures[-1].accumulation_steps
        return Trial(micro_batch=high, accumulation_steps=steps, phase="certify", fresh=True)
    out_of_memory = failures[-1].outcome is Outcome.OOM
    if not whole and out_of_memory and (low == 0 or goal.rank_batch <= 2 * high):
        return Trial(micro_batch=goal.rank_batch, accumulation_steps=1, phase="whole", fresh=goal.certify)
    return None


def at_most(samples: Sequence[Sample], goal: Goal) -> int | None:
    """Give how many trials `double_then_bisect` may still need, if none is reversed; None while there is no bound."""
    seen = accumulating(samples)
    if goal.find_max and seen.smallest_failed is None:
        return None
    tried_whole = any(s.accumulation_steps == 1 for s in samples)
    return _worst(seen.largest_ok or 0, seen.smallest_failed, goal) + goal.certify + (not tried_whole)


def _worst(low: int, high: int | None, goal: Goal) -> int:
    if high is None:
        size = _grown(low, goal)
        return 0 if size == low else 1 + max(_worst(low, size, goal), _worst(size, None, goal))
    return len(_between(low, high, goal)).bit_length()


def _grown(low: int, goal: Goal) -> int:
    size = max(FIRST_SIZE, 2 * low)
    return size if goal.find_max and low >= goal.rank_batch // 2 else min(size, goal.rank_batch)


def _between(low: int, high: int, goal: Goal) -> Sequence[int]:
    if low == 0:
        return range(1, min(high, FIRST_SIZE))
    if goal.find_max:
        return range(low + 1, high)
    return [size for size in goal.candidates if low < size < high]

"""Which size to try next, and when to stop: a pure function of what was seen so far.

A strategy is any function like `gallop_then_bisect`; the pipeline calls it until it gives None, so
another search can take its place without a change elsewhere.

Two questions are asked. Does the whole target fit at once, without accumulation? Then gradients are not resident
while activations are, and there is more room. If not: which is the largest size that fits with accumulation?

Sizes double from 2. Where a rehearsal foretold the answer, the search starts there instead, and ever longer strides
lead from it to the limit. A prior that is wrong costs trials, and changes nothing of what is found.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoaccum.records import Bracket, Outcome, Sample, Trial

FIRST_SIZE = 2  # size 1 is special: kernels specialise, and BatchNorm refuses it
_TOO_LARGE = (Outcome.OOM, Outcome.KILLED, Outcome.TIMED_OUT)
_ENOUGH_TO_FIT = 2  # sizes that ran with accumulation


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What the search is for."""

    rank_batch: int  # no plan needs a larger micro-batch
    candidates: tuple[int, ...]  # the sizes that the solver can use, ascending
    find_max: bool = False  # the exact largest size, whether a plan needs it or not
    certify: bool = False  # a size has not failed for certain until it failed in a fresh process
    start: int | None = None  # the size that is expected to be the largest that fits; None: nobody knows


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


def gallop_then_bisect(samples: Sequence[Sample], goal: Goal) -> Trial | None:
    """Gallop until the limit lies between two sizes, then bisect among the sizes that a plan can use.

    A worker carries some memory over from size to size. Where that tells (`goal.certify`), sizes near the limit
    run in fresh processes, and the search does not end on a failure in a used one.
    """
    trial = _towards_the_limit(samples, goal)
    size = None if trial is not None or goal.start is None else _for_the_models(samples)
    return trial if size is None else Trial(micro_batch=size, phase="fit")


def _towards_the_limit(samples: Sequence[Sample], goal: Goal) -> Trial | None:
    whole = [s for s in samples if s.accumulation_steps == 1]
    if any(s.ok for s in whole) and not goal.find_max:
        return None
    seen = accumulating(samples)
    low, high = seen.largest_ok or 0, seen.smallest_failed
    if high is None:
        size = _grown(low, goal)
        steps = 1 if size == goal.rank_batch and not whole else 2
        return Trial(micro_batch=size, accumulation_steps=steps, phase="grow")
    failures = [s for s in samples if s.micro_batch == high]
    out_of_memory = failures[-1].outcome is Outcome.OOM
    smaller = _shrunk(high, goal) if low == 0 else None
    if smaller is not None:
        # What hangs or crashes may do so at every size, and a long way down would be long indeed.
        size = smaller if out_of_memory else _ladder(goal)[0]
        return Trial(micro_batch=size, phase="shrink", fresh=goal.certify)
    between = _between(low, high, goal)
    if between:
        return Trial(micro_batch=between[len(between) // 2], phase="bisect", fresh=goal.certify)
    # A size that was killed or timed out is not provoked again.
    if goal.certify and not any(s.fresh or s.outcome is not Outcome.OOM for s in failures):
        steps = failures[-1].accumulation_steps
        return Trial(micro_batch=high, accumulation_steps=steps, phase="certify", fresh=True)
    if not whole and out_of_memory and (low == 0 or goal.rank_batch <= 2 * high):
        return Trial(micro_batch=goal.rank_batch, accumulation_steps=1, phase="whole", fresh=goal.certify)
    return None


def at_most(samples: Sequence[Sample], goal: Goal) -> int | None:
    """Give how many trials `gallop_then_bisect` may still need, if none is reversed; None while there is no bound."""
    seen = accumulating(samples)
    if goal.find_max and seen.smallest_failed is None:
        return None
    tried_whole = any(s.accumulation_steps == 1 for s in samples)
    modelling = 0 if goal.start is None else max(0, _ENOUGH_TO_FIT - len(_fitted(samples)))
    return _worst(seen.largest_ok or 0, seen.smallest_failed, goal) + goal.certify + (not tried_whole) + modelling


def _worst(low: int, high: int | None, goal: Goal) -> int:
    if high is None:
        size = _grown(low, goal)
        return 0 if size == low else 1 + max(_worst(low, size, goal), _worst(size, None, goal))
    smaller = _shrunk(high, goal) if low == 0 else None
    if smaller is not None:
        return 1 + max(_worst(smaller, high, goal), _worst(0, smaller, goal))
    return len(_between(low, high, goal)).bit_length()


def _grown(low: int, goal: Goal) -> int:
    """Give a larger size: twice as large, or from a start the next one, then 2, 4 ... further up the ladder."""
    if goal.start is None:
        size = max(FIRST_SIZE, 2 * low)
        return size if goal.find_max and low >= goal.rank_batch // 2 else min(size, goal.rank_batch)
    ladder, first = _ladder(goal), _first(goal)
    place = bisect_right(ladder, low) - 1
    size = ladder[first if place < first else min(2 * place - first + 1, len(ladder) - 1)]
    return size if low >= goal.rank_batch else min(size, goal.rank_batch)


def _shrunk(high: int, goal: Goal) -> int | None:
    """Give a smaller size, where nothing ran yet and the start was too large: by strides as long as those upwards."""
    if goal.start is None:
        return None
    ladder, first = _ladder(goal), _first(goal)
    place = bisect_left(ladder, high)
    if place == 0:
        return None
    return ladder[first if place > first else max(0, 2 * place - first - 1)]


def _ladder(goal: Goal) -> Sequence[int]:
    """Give the sizes that a search from a start may try, ascending; 1 is not among them, where there are others."""
    if goal.find_max:
        return range(FIRST_SIZE, sys.maxsize)
    return [size for size in goal.candidates if size >= FIRST_SIZE] or goal.candidates


def _first(goal: Goal) -> int:
    """Give the place of the start on the ladder."""
    return max(0, bisect_right(_ladder(goal), goal.start or 0) - 1)


def _between(low: int, high: int, goal: Goal) -> Sequence[int]:
    if low == 0:
        return range(1, min(high, FIRST_SIZE))
    if goal.find_max:
        return range(low + 1, high)
    return [size for size in goal.candidates if low < size < high]


def _fitted(samples: Sequence[Sample]) -> set[int]:
    """Give the sizes that the memory model can be fitted on."""
    return {s.micro_batch for s in samples if s.ok and s.accumulation_steps > 1 and s.micro_batch >= FIRST_SIZE}


def _for_the_models(samples: Sequence[Sample]) -> int | None:
    """Give a size for the models, where the search was too short for them: half of the smallest that ran."""
    smallest = min((s.micro_batch for s in samples if s.ok), default=0)
    failed = min((s.micro_batch for s in samples if not s.ok and s.accumulation_steps > 1), default=smallest)
    half = max(FIRST_SIZE, smallest // 2)
    return half if half < min(smallest, failed) and len(_fitted(samples)) < _ENOUGH_TO_FIT else None

"""Which size to try next, and when to stop: a pure function of what was seen so far.

A strategy is any function like `fewest_trials`; the pipeline calls it until it gives None, so another search can take
its place without a change elsewhere.

What is searched for is a plan, not a batch size: only sizes that the solver can use are tried, and the search ends as
soon as it is known which of them is the largest that fits. What a size will need is bounded from what ran so far
(expectation.py). The largest size that fits for certain is run next, which tightens the bounds; where there is none,
the next larger one, unless it cannot fit. So out-of-memory is met at most at the very size that ends the search, as
long as the bounds hold; where they do not, it costs trials, and changes nothing of what is found.

The whole target in one piece is run without accumulation, as training would: then gradients are not resident while
activations are, and there is more room.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoaccum.expectation import TOO_LARGE, Expectation
from autoaccum.records import Bracket, Certificate, Outcome, Prior, Sample, Trial

FIRST_SIZE = 2  # size 1 is special: kernels specialise, and BatchNorm refuses it
_FEW = 3  # sizes that may fit, and are tried one by one from below
_FARTHEST = 16  # times the largest size that ran: what is made for a batch is real memory of the host
_MOST_DISAPPOINTMENTS = 2  # failures before the first success, from which on the smallest size is next


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What the search is for."""

    rank_batch: int  # no plan needs a larger micro-batch
    candidates: tuple[int, ...]  # the sizes that the solver can use, ascending
    limit_bytes: int  # what the process may hold on the device
    find_max: bool = False  # the exact largest size, whether a plan needs it or not
    fresh: bool = False  # each trial in a process of its own: where one carries memory over to the next
    meter_error_bytes: int = 0  # by how much a peak may be off, which hides what small sizes take
    gradient_bytes: int = 0  # that stay for the next micro-step where there is one
    prior: Prior | None = None  # what a rehearsal foresaw


Strategy = Callable[[Sequence[Sample], Goal], Trial | None]


def bracket(samples: Sequence[Sample]) -> Bracket:
    """Give the largest size that ran and the smallest larger one that did not; what ran once can run."""
    searched = [s for s in samples if s.phase != "confirm"]
    largest = max((s.micro_batch for s in searched if s.ok), default=None)
    failed = [s.micro_batch for s in searched if s.outcome in TOO_LARGE and s.micro_batch > (largest or 0)]
    return Bracket(largest_ok=largest, smallest_failed=min(failed, default=None))


def accumulating(samples: Sequence[Sample]) -> Bracket:
    """Give the bracket with accumulation; what does not even fit without it bounds it too."""
    return bracket([s for s in samples if s.accumulation_steps > 1 or not s.ok])


def fewest_trials(samples: Sequence[Sample], goal: Goal) -> Trial | None:
    """Run the largest size that fits for certain, then the next larger ones until one cannot fit, or did not."""
    if not goal.find_max and any(s.ok and s.accumulation_steps == 1 for s in samples):
        return None
    seen = accumulating(samples)
    low, high = seen.largest_ok or 0, seen.smallest_failed
    if low == 0 and high is not None:
        size = _smaller(samples, goal, high)
        if size is not None:
            return _trial(size, samples, goal, "shrink")
    else:
        expected = _expectation(samples, goal)
        sizes = _between(low, high, goal)
        certain = _certain(sizes, samples, goal)
        if certain is not None:
            return _trial(certain, samples, goal, "jump" if low else "start")
        if low == 0:
            foreseen = None if goal.prior is None else goal.prior.start
            first = foreseen if foreseen is not None and foreseen in sizes else sizes[0]
            return _trial(first, samples, goal, "start")
        possible = _up_to(sizes, lambda size: expected.bounds(size).least_bytes <= goal.limit_bytes)
        if possible:
            return _trial(_daring(possible, samples, goal), samples, goal, "edge")
    return _whole_at_last(samples, goal)


def certificate(samples: Sequence[Sample], goal: Goal) -> Certificate | None:
    """Say why the search may end: what ran, and what speaks against the next larger size; None if nothing ran."""
    searched = [s for s in samples if s.phase != "confirm"]
    if any(s.ok and s.accumulation_steps == 1 for s in searched) and not goal.find_max:
        return Certificate(micro_batch=goal.rank_batch, next_micro_batch=None, basis="target")
    seen = accumulating(searched)
    if seen.largest_ok is None:
        return None
    larger = _between(seen.largest_ok, None, goal)
    if not larger:
        return Certificate(micro_batch=seen.largest_ok, next_micro_batch=None, basis="target")
    after = larger[0]
    failed = [s for s in searched if s.micro_batch == after and s.outcome in TOO_LARGE]
    if failed:
        return Certificate(micro_batch=seen.largest_ok, next_micro_batch=after, basis=str(failed[-1].outcome))
    return Certificate(
        micro_batch=seen.largest_ok,
        next_micro_batch=after,
        basis="predicted",
        needed_bytes=round(_expectation(searched, goal).bounds(after).least_bytes),
        limit_bytes=goal.limit_bytes,
    )


def _trial(size: int, samples: Sequence[Sample], goal: Goal, phase: str) -> Trial:
    tried = any(s.accumulation_steps == 1 for s in samples)
    alone = size == goal.rank_batch and not tried
    steps = 1 if alone else 2
    return Trial(micro_batch=size, accumulation_steps=steps, phase=phase, fresh=goal.fresh, recorded=True)


def _expectation(samples: Sequence[Sample], goal: Goal) -> Expectation:
    tried = any(s.accumulation_steps == 1 for s in samples)
    return Expectation(
        samples,
        goal.prior,
        limit_bytes=goal.limit_bytes,
        whole=0 if tried else goal.rank_batch,
        gradient_bytes=goal.gradient_bytes,
        meter_error_bytes=goal.meter_error_bytes,
        strict=goal.find_max,
    )


def _certain(sizes: Sequence[int], samples: Sequence[Sample], goal: Goal) -> int | None:
    """Give the largest of the sizes that fits for certain, within a jump's reach; None where none does."""
    expected = _expectation(samples, goal)
    # The whole target alone needs less than a size a little below it, which keeps gradients.
    if goal.rank_batch in sizes and expected.bounds(goal.rank_batch).most_bytes <= goal.limit_bytes:
        return goal.rank_batch
    fitting = _up_to(sizes, lambda size: expected.bounds(size).most_bytes <= goal.limit_bytes)
    if goal.find_max and fitting:
        farthest = _FARTHEST * max([goal.rank_batch, *(s.micro_batch for s in samples if s.ok)])
        fitting = fitting[: max(1, bisect_right(fitting, farthest))]
    return fitting[-1] if fitting else None


def _smaller(samples: Sequence[Sample], goal: Goal, high: int) -> int | None:
    """Give a size below those that failed, where none ran yet; None where there is none."""
    ladder = _ladder(goal)
    below = ladder[: bisect_left(ladder, high)]
    if not below:
        return 1 if high > 1 and 1 in goal.candidates else None
    failed = [s for s in samples if s.outcome in TOO_LARGE]
    # What hangs or crashes may do so at every size, and a long way down would be long indeed.
    if len(failed) >= _MOST_DISAPPOINTMENTS or failed[-1].outcome is not Outcome.OOM:
        return below[0]
    return _certain(below, samples, goal) or below[0]


def _whole_at_last(samples: Sequence[Sample], goal: Goal) -> Trial | None:
    """Give the trial of the whole target where smaller sizes do not fit: alone, it may, for it keeps no gradients."""
    if any(s.accumulation_steps == 1 or s.outcome in (Outcome.KILLED, Outcome.TIMED_OUT) for s in samples):
        return None
    seen = accumulating(samples)
    if seen.largest_ok is not None:
        expected = _expectation(samples, goal)
        if expected.bounds(goal.rank_batch).least_bytes > goal.limit_bytes:
            return None
        if not expected.has_slope and goal.rank_batch > 2 * (seen.smallest_failed or goal.rank_batch):
            return None
    return _trial(goal.rank_batch, samples, goal, "whole")


def _daring(possible: Sequence[int], samples: Sequence[Sample], goal: Goal) -> int:
    """Give the size to try among those that may fit: the next one, unless there are so many that it takes too long."""
    if not _expectation(samples, goal).has_slope:
        return possible[0]
    if goal.find_max:
        return possible[len(possible) // 2]
    return possible[len(possible) // 4 if len(possible) > _FEW else 0]


def _ladder(goal: Goal) -> Sequence[int]:
    """Give the sizes that may be tried, ascending; 1 is not among them, where there are others."""
    if goal.find_max:
        return range(FIRST_SIZE, sys.maxsize)
    return [size for size in goal.candidates if size >= FIRST_SIZE] or goal.candidates


def _between(low: int, high: int | None, goal: Goal) -> Sequence[int]:
    """Give the sizes of the ladder above one that ran and below one that did not."""
    ladder = _ladder(goal)
    return ladder[bisect_right(ladder, low) : len(ladder) if high is None else bisect_left(ladder, high)]


def _up_to(sizes: Sequence[int], holds: Callable[[int], bool]) -> Sequence[int]:
    """Give the sizes up to the largest for which it holds; it holds for all below."""
    return sizes[: bisect_left(sizes, True, key=lambda size: not holds(size))]

"""Which candidate to measure next. A pure function of what was measured so far.

First the largest size that fits and ever smaller ones, as long as they are not clearly slower. Then around the best,
one thing at a time: each knob that has not done harm, at the best size; where larger sizes might pay, those that some
knobs have made room for, though they be slower at the same size; the sizes between the best one and its neighbours;
the sizes that are far from all that were measured.
Whatever turns out faster is the new best, and the next proposal starts from there. When nothing is left to propose,
Optuna's sampler has the rest of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoaccum.records import Knobs
from autoaccum.tuning.memory import kind_of
from autoaccum.tuning.results import Fate
from autoaccum.tuning.space import Candidate, Space

_STRIDE = 4  # from one size of the first ladder to the next
_CLEARLY = 1.15  # so much slower than the best, and still smaller sizes are not tried
_APART = 1.3  # sizes closer than this factor are hardly different
_VALLEY = 1.25  # a size so far from its measured neighbours may be unlike both
_SLOWER, _FASTER = 1.02, 0.99  # times as long: a knob is taken to do harm, or good
_TRADES = ("checkpoint", "expandable_segments")  # no faster at the same size: for the room that they make


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A candidate that was measured, or is being measured somewhere."""

    candidate: Candidate
    value: float | None = None  # what is minimised; None while it is not known, and where there is none
    fate: Fate | None = None  # None while it runs


Fits = Callable[[Candidate], bool]
Turn = tuple[str, Any]  # a knob and its value


def propose(seen: Sequence[Seen], space: Space, fits: Fits) -> Candidate | None:
    """Give the next candidate to measure; None when there is nothing left to propose."""
    taken = {each.candidate for each in seen}
    for candidate in _ideas(seen, space, fits):
        if candidate not in taken and fits(candidate):
            return candidate
    return None


def instead(suggestion: Candidate, seen: Sequence[Seen], space: Space, fits: Fits) -> Candidate | None:
    """Give the suggestion, or the candidate most like it that is new and may fit; None where there is none left."""
    taken = {each.candidate for each in seen}
    free = [
        candidate
        for knobs in space.all_knobs()
        for size in space.sizes
        if (candidate := Candidate(micro_batch=size, knobs=knobs)) not in taken and fits(candidate)
    ]

    def unlike(candidate: Candidate) -> tuple[int, float]:
        turned = sum(getattr(candidate.knobs, name) != getattr(suggestion.knobs, name) for name in space.values)
        return turned, abs(math.log(candidate.micro_batch / suggestion.micro_batch))

    return min(free, key=unlike, default=None)


def _ideas(seen: Sequence[Seen], space: Space, fits: Fits) -> Iterator[Candidate]:
    yield from _ladder(seen, space, fits)
    best = min(_valued(seen), key=lambda each: each.value or math.inf, default=None)
    if best is None:
        return
    yield from _turned(best.candidate, seen, space, fits, trades=False)
    yield from _proven(best.candidate, seen, space)
    room_may_pay = _room_may_pay(best, seen, space, fits)
    if room_may_pay:
        yield from _roomy(seen, space, fits)
    yield from _between(best.candidate, seen, space, fits)
    if room_may_pay:
        yield from _turned(best.candidate, seen, space, fits, trades=True)
    yield from _gaps(best, seen, space, fits)
    yield from _beside(best.candidate, seen, space, fits)


def _ladder(seen: Sequence[Seen], space: Space, fits: Fits) -> Iterator[Candidate]:
    """Give sizes without further knobs, from the largest down, until one is clearly slower."""
    values = {each.candidate: each.value for each in _valued(seen)}
    best = min((value for value in values.values() if value is not None), default=math.inf)
    sizes = _fitting(space.ground, space, fits)
    size = sizes[-1] if sizes else 0
    while sizes:
        candidate = Candidate(micro_batch=size, knobs=space.ground)
        yield candidate
        value = values.get(candidate)
        if value is not None and value > best * _CLEARLY:
            return
        sizes = [smaller for smaller in sizes if smaller < size]
        size = _nearest(sizes, size / _STRIDE) if sizes else 0


def _turned(best: Candidate, seen: Sequence[Seen], space: Space, fits: Fits, *, trades: bool) -> Iterator[Candidate]:
    """Give the best with one knob turned, each set of knobs once, at the largest size up to its own that may fit."""
    tried = {each.candidate.knobs for each in seen}
    useless = _failing(seen, space) | _harmful(seen, space)
    for name, values in space.values.items():
        for value in values if (name in _TRADES) == trades else ():
            knobs = replace(best.knobs, **{name: value})
            sizes = [size for size in _fitting(knobs, space, fits) if size <= best.micro_batch]
            if sizes and knobs not in tried and (name, value) not in useless:
                yield Candidate(micro_batch=sizes[-1], knobs=knobs)


def _proven(best: Candidate, seen: Sequence[Seen], space: Space) -> Iterator[Candidate]:
    """Give the best with one knob turned that made some other candidate faster."""
    for name, value in sorted(_changes(seen, space, lambda ratio: ratio < _FASTER), key=str):
        if getattr(best.knobs, name) != value:
            yield replace(best, knobs=replace(best.knobs, **{name: value}))


def _room_may_pay(best: Seen, seen: Sequence[Seen], space: Space, fits: Fits) -> bool:
    """Whether larger micro-batches than now fit might be faster: the largest so far is not clearly slower."""
    if best.candidate.micro_batch == max(space.sizes):
        return False
    largest = max(_valued(seen), key=lambda each: each.candidate.micro_batch)
    same = [each.value for each in _valued(seen) if each.candidate.knobs == largest.candidate.knobs]
    return (largest.value or 0.0) <= min(value for value in same if value is not None) * _CLEARLY


def _roomy(seen: Sequence[Seen], space: Space, fits: Fits) -> Iterator[Candidate]:
    """Give the largest size of each set of knobs that has made room for larger ones, the fastest sets first.

    Of sets that hold the same memory only the fastest is taken further.
    """
    fastest: dict[Knobs, float] = {}
    for each in _valued(seen):
        fastest[each.candidate.knobs] = min(each.value or math.inf, fastest.get(each.candidate.knobs, math.inf))
    tried: set[Knobs] = set()
    for knobs in sorted(fastest, key=lambda knobs: fastest[knobs]):
        fitting, measured = _fitting(knobs, space, fits), _sizes_seen(knobs, seen, space)
        if kind_of(knobs) not in tried and fitting and fitting[-1] > measured[-1] * _APART:
            yield Candidate(micro_batch=fitting[-1], knobs=knobs)
        tried.add(kind_of(knobs))


def _between(best: Candidate, seen: Sequence[Seen], space: Space, fits: Fits) -> Iterator[Candidate]:
    """Give the sizes between the best one and its neighbours, with the best knobs."""
    fitting, measured = _fitting(best.knobs, space, fits), _sizes_seen(best.knobs, seen, space)
    below = max((size for size in measured if size < best.micro_batch), default=0)
    above = min((size for size in measured if size > best.micro_batch), default=(fitting or [0])[-1] + 1)
    for low, high in ((best.micro_batch, above), (below, best.micro_batch)):
        between = [size for size in fitting if low < size < high and not _close(size, (low, high))]
        if between:
            yield Candidate(micro_batch=_nearest(between, math.sqrt(max(1, low) * high)), knobs=best.knobs)


def _gaps(best: Seen, seen: Sequence[Seen], space: Space, fits: Fits) -> Iterator[Candidate]:
    """Give the size that is farthest from all that were measured, with the best knobs: a valley may lie there.

    Between sizes that are both clearly slower none is looked for.
    """
    fastest: dict[int, float] = {}
    for each in _valued(seen):
        size = each.candidate.micro_batch
        fastest[size] = min(each.value or math.inf, fastest.get(size, math.inf))
    near = (best.value or math.inf) * _CLEARLY
    taken = {each.candidate.micro_batch for each in seen}
    far: dict[int, float] = {}
    for size in set(_fitting(best.candidate.knobs, space, fits)) - taken:
        below = max((other for other in fastest if other < size), default=0)
        above = min((other for other in fastest if other > size), default=0)
        if below and above and min(fastest[below], fastest[above]) <= near:
            far[size] = min(math.log(size / below), math.log(above / size))
    farthest = max(far, key=lambda size: (far[size], size), default=0)
    if farthest and far[farthest] > math.log(_VALLEY):
        yield Candidate(micro_batch=farthest, knobs=best.candidate.knobs)


def _beside(best: Candidate, seen: Sequence[Seen], space: Space, fits: Fits) -> Iterator[Candidate]:
    """Give the next larger and the next smaller size, with the best knobs: where a step or a wave ends."""
    sizes = _fitting(best.knobs, space, fits)
    if best.micro_batch in sizes:
        place = sizes.index(best.micro_batch)
        for index in (place + 1, place - 1):
            if 0 <= index < len(sizes):
                yield Candidate(micro_batch=sizes[index], knobs=best.knobs)


def _sizes_seen(knobs: Knobs, seen: Sequence[Seen], space: Space) -> list[int]:
    """Give the sizes that were measured with these knobs or without any: the same ladder is not climbed twice."""
    return sorted({each.candidate.micro_batch for each in seen if each.candidate.knobs in (knobs, space.ground)})


def _failing(seen: Sequence[Seen], space: Space) -> set[Turn]:
    """Give the values of knobs that failed wherever they were tried; running out of memory is no such failure."""
    failed: set[Turn] = set()
    worked: set[Turn] = set()
    for each in seen:
        turned = {(name, getattr(each.candidate.knobs, name)) for name in space.values}
        if each.fate is Fate.FAILED:
            failed |= {(name, value) for name, value in turned if value != getattr(space.ground, name)}
        elif each.fate in (Fate.OK, Fate.PRUNED):
            worked |= turned
    return failed - worked


def _harmful(seen: Sequence[Seen], space: Space) -> set[Turn]:
    """Give the values of knobs that made some candidate slower than it was, at the same size: others they would too."""
    return _changes(seen, space, lambda ratio: ratio > _SLOWER)


def _changes(seen: Sequence[Seen], space: Space, matters: Callable[[float], bool]) -> set[Turn]:
    """Give the values of knobs with which some candidate took so many times as long as with another value."""
    values = {each.candidate: each.value for each in _valued(seen)}
    found: set[Turn] = set()
    for candidate, value in values.items():
        for name in space.values:
            for other in space.values[name]:
                without = values.get(replace(candidate, knobs=replace(candidate.knobs, **{name: other})))
                if value is not None and without is not None and matters(value / without):
                    found.add((name, getattr(candidate.knobs, name)))
    return found


def _valued(seen: Iterable[Seen]) -> list[Seen]:
    return [each for each in seen if each.value is not None]


def _fitting(knobs: Knobs, space: Space, fits: Fits) -> list[int]:
    return [size for size in space.sizes if fits(Candidate(micro_batch=size, knobs=knobs))]


def _nearest(sizes: Sequence[int], wanted: float) -> int:
    return min(sizes, key=lambda size: abs(math.log(size / max(wanted, 1e-9))))


def _close(size: int, others: Iterable[int]) -> bool:
    return any(other > 0 and max(size, other) / min(size, other) < _APART for other in others)

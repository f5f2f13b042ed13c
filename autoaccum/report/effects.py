"""What each knob did to the speed: candidates that differ in it alone, compared. Pure.

The proposals of tuning turn one knob at a time, so that such pairs are there; and a pair says what a model of all
trials could only guess from so few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from autoaccum.knobs.names import of_options, words
from autoaccum.records import Knobs
from autoaccum.tuning.results import Fate, Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """How many times as fast an update is with a knob as without, all else alike."""

    name: str
    speed: float  # the median over the pairs
    lowest: float
    highest: float
    pairs: int


def effects(trials: Sequence[Measurement]) -> list[Effect]:
    """Give the effect of every knob that was tried, and of the micro-batch, the largest first."""
    timed = {
        (row.micro_batch, of_options(row.options)): row.update_seconds
        for row in trials
        if row.outcome in (Fate.OK, Fate.PRUNED) and row.update_seconds
    }
    found: dict[str, list[float]] = defaultdict(list)
    for (size, knobs), seconds in timed.items():
        for name, value in knobs.options.items():
            without = timed.get((size, _without(knobs, name)))
            if without:
                found[words(of_options({name: value}))[0]].append(without / seconds)
    results = [
        Effect(name=name, speed=median(each), lowest=min(each), highest=max(each), pairs=len(each))
        for name, each in found.items()
    ]
    return sorted([*results, *_of_the_size(timed)], key=lambda effect: -abs(effect.speed - 1))


def _of_the_size(timed: dict[tuple[int, Knobs], float]) -> list[Effect]:
    """Give what the fastest size is against the largest, for the knobs with the most sizes."""
    by_knobs: dict[Knobs, dict[int, float]] = defaultdict(dict)
    for (size, knobs), seconds in timed.items():
        by_knobs[knobs][size] = seconds
    sizes = max(by_knobs.values(), key=len, default={})
    if not sizes:
        return []
    best, largest = min(sizes, key=lambda size: sizes[size]), max(sizes)
    if best == largest:
        return []
    speed = sizes[largest] / sizes[best]
    name = f"micro-batch {best} instead of {largest}"
    return [Effect(name=name, speed=speed, lowest=speed, highest=speed, pairs=1)]


def _without(knobs: Knobs, name: str) -> Knobs:
    options: dict[str, Any] = {key: value for key, value in knobs.options.items() if key != name}
    return of_options(options)

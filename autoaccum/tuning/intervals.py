"""How well a time is known, and whether one of two is shorter. Pure.

Times on a busy machine have a long tail, so the middle is a median, and its interval comes from ranks alone: with
n windows the k-th smallest and the k-th largest enclose the median with a probability that only n and k decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

_LEVEL = 0.95
WORTH = 0.01  # what is gained by less is not worth a knob
ENOUGH, _DECISIVE_IF_FAR = 7, 4  # windows of each side
_FAR = 0.05
_DUEL_Z = 3.0  # an interval at 99.7 %: a duel looks after every round, and a tuning has several
_MOST_OF_A_SIDE = 200
WORTH_ACROSS_PROCESSES = 0.02  # as much may lie in how a process happens to be laid out


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A median and its interval at 95 %; with fewer than six values the interval is all of them."""

    median: float
    low: float
    high: float
    values: int

    @property
    def width(self) -> float:
        """The interval's, as a share of the median."""
        return (self.high - self.low) / self.median if self.median > 0 else 0.0


def estimate(values: Sequence[float]) -> Estimate:
    """Give the median of `values` and how well it is known.

    >>> estimate([1.0, 1.1, 1.2, 1.0, 1.1, 9.0, 1.1, 1.2, 1.0]).median
    1.1
    """
    ordered = sorted(values)
    rank = _rank(len(ordered))
    return Estimate(median=median(ordered), low=ordered[rank], high=ordered[-1 - rank], values=len(ordered))


@cache
def _rank(count: int) -> int:
    """Give how many values lie outside of the interval, on each side."""
    outside, below = 0, 0.0
    while True:
        below += math.comb(count, outside) / 2**count
        if below > (1 - _LEVEL) / 2 or outside >= count // 2:
            return max(0, outside - 1) if below > (1 - _LEVEL) / 2 else outside
        outside += 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The challenger's time over the incumbent's, from windows that were measured in turns."""

    ratio: float
    low: float
    high: float
    rounds: int
    windows: int  # of the side that has fewer
    worth: float = WORTH
    enough: int = ENOUGH  # windows of each side, where they are not far apart

    @property
    def decisive(self) -> bool:
        """Whether there are enough windows to say anything: seven and seven part by chance in 1 case of 1716.

        Where all of one side are far from all of the other, four of each will do.
        """
        far = self.high < 1.0 - _FAR or self.low > 1.0 + _FAR
        return self.windows >= (_DECISIVE_IF_FAR if far else self.enough)

    @property
    def faster(self) -> bool:
        """Whether the challenger is, by more than the noise and by enough to matter."""
        return self.decisive and self.high < 1.0 and self.ratio < 1.0 - self.worth

    @property
    def slower(self) -> bool:
        """Whether it is slower, likewise."""
        return self.decisive and self.low > 1.0 and self.ratio > 1.0 + self.worth

    @property
    def settled(self) -> bool:
        """Whether more rounds would hardly change the answer."""
        close = self.low > 1.0 - self.worth and self.high < 1.0 + self.worth
        return self.faster or self.slower or (self.decisive and close)


def compare(
    incumbent: Sequence[float], challenger: Sequence[float], rounds: int, worth: float = WORTH, enough: int = ENOUGH
) -> Comparison:
    """Compare the windows of two that took turns, so that what slowed the machine for a while slowed both.

    The ratio is the median over all pairs of their windows, and its interval comes from the ranks of the pairs
    (Hodges and Lehmann), so that a long tail moves neither. One is faster where the interval leaves 1 out.

    >>> compare([1.0, 1.1, 1.0, 1.1, 1.0, 1.1, 1.0], [0.9, 0.8, 0.9, 0.8, 0.9, 0.8, 0.9], rounds=2).faster
    True
    """
    old, new = _thinned(incumbent), _thinned(challenger)
    pairs = sorted(each / other for each in new for other in old)
    windows = min(len(incumbent), len(challenger))
    if windows == 0:
        return Comparison(ratio=1.0, low=0.0, high=math.inf, rounds=rounds, windows=0, worth=worth)
    spread = math.sqrt(len(pairs) * (len(old) + len(new) + 1) / 12)  # of the rank-sum statistic, were they alike
    outside = max(0, math.floor(len(pairs) / 2 - _DUEL_Z * spread))
    return Comparison(
        ratio=median(pairs),
        low=pairs[outside],
        high=pairs[-1 - outside],
        rounds=rounds,
        windows=windows,
        worth=worth,
        enough=enough,
    )


def _thinned(values: Sequence[float]) -> Sequence[float]:
    """Give some hundred of the values, evenly from all of them: pairs are many."""
    stride = -(-len(values) // _MOST_OF_A_SIDE)
    return values[::stride] if stride > 1 else values

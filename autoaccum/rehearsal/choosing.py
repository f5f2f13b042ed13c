"""Which of the sizes is the largest that fits, in few runs. Pure.

Memory grows with the size nearly along a line, so the next size to run is where the line through what was seen meets
the limit. The answer does not rest on the line: the size below the limit and the one above it have both been run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

_FARTHEST = 8  # times the largest size so far: what is made for a batch is real memory of the host


def largest_that_fits(
    sizes: Sequence[int],
    needs: Callable[[int], int],
    limit_bytes: int,
    seen: Mapping[int, int],
    first: Sequence[int] = (2, 8),
) -> int | None:
    """Give the largest of the ascending `sizes` that needs no more than the limit, None where none does.

    `needs(size)` runs a size, and adds what it needs to `seen`.

    >>> seen = {}
    >>> largest_that_fits(range(1, 100), lambda size: seen.setdefault(size, 10 * size), 505, seen)
    50
    """
    for size in first:
        start = sizes[max(0, bisect_right(sizes, size) - 1)]
        if start not in seen:
            needs(start)
        if seen[start] > limit_bytes:
            break
    while True:
        fitting = [index for index, size in enumerate(sizes) if size in seen and seen[size] <= limit_bytes]
        low = max(fitting, default=-1)
        high = next((i for i, size in enumerate(sizes) if i > low and seen.get(size, 0) > limit_bytes), len(sizes))
        if high == low + 1:
            return sizes[low] if low >= 0 else None
        needs(sizes[_next(sizes, low, high, limit_bytes, seen)])


def _next(sizes: Sequence[int], low: int, high: int, limit_bytes: int, seen: Mapping[int, int]) -> int:
    """Give the index, between those of a size that fits and one that does not, at which the line meets the limit."""
    known = sorted((size, seen[size]) for size in sizes if size in seen)
    below = [point for point in known if point[1] <= limit_bytes]
    above = [point for point in known if point[1] > limit_bytes]
    (x0, y0), (x1, y1) = [*below[-1:], *above[:1]] if below and above else (known * 2)[-2:]
    slope = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
    meets = x0 + (limit_bytes - y0) / slope if slope > 0 else float("inf")
    meets = min(meets, known[-1][0] * _FARTHEST)
    return max(low + 1, min(high - 1, bisect_right(sizes, meets) - 1))

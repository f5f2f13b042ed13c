"""The truth of a case: what runs, each candidate in a fresh process, from the largest down.

Feasibility is not monotone, for the allocator's blocks may lie better at a larger size: so there is no bisecting. What
allocates more than the limit for live tensors alone cannot run, whatever the allocator does, and is not tried.

There are two truths. A size runs if three updates of two equal micro-steps do, or of one where it is the whole target.
A plan runs if a whole update of its own sizes does after that, which is asked of its largest and smallest size in turn:
where sizes differ, they do not always fit into each other's blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from autoaccum.solve import candidates, splits
from benchmarks.search import trials
from benchmarks.search.cases import ROOM_BYTES
from benchmarks.search.forks import Row, Variables, apart

_TIMES = 3
_FAR = 1.1  # times the limit: so much for live tensors is not tried

Peaks = Sequence[tuple[int, int, int, int]]  # size, micro-steps, allocated and reserved bytes


def on_gpu(spec: str, targets: Sequence[int], limit_bytes: int, variables: Variables, bare: Variables) -> Row:
    """Find the largest size and the plan with the fewest steps that run for each target; None where none does."""
    live = _peaks(spec, _sizes(max(targets)), bare, enough_bytes=round(_FAR * limit_bytes))
    tried: list[tuple[int, int, bool]] = []

    @cache
    def runs(size: int, plan: tuple[int, ...]) -> bool:
        given = {"spec": spec, "size": size, "plan": plan, "limit_bytes": limit_bytes}
        row = apart(trials.fits, given, variables)
        if "crash" in row:
            raise RuntimeError(row["crash"])
        tried.append((size, len(plan), row["ok"]))
        return bool(row["ok"])

    found = {}
    for target in targets:
        # Alone, the whole target keeps no gradients, and may fit where a smaller size does not.
        alone = _peaks(spec, [(target, 1)], bare, enough_bytes=0)[0][2] <= _FAR * limit_bytes

        def possible(size: int, target: int = target, alone: bool = alone) -> bool:
            return alone if size == target else _live(live, size) <= _FAR * limit_bytes

        sizes = [size for size in reversed(candidates(target, "uneven")) if possible(size)]
        steps = [-(-target // size) for size in sizes]
        plans = [plan for each in steps for plan in splits(target, each) if possible(plan[0])]
        found[target] = {
            "size": next((size for size in sizes if runs(size, (target,) if size == target else ())), None),
            "steps": next((len(plan) for plan in plans if runs(plan[0], plan)), None),
        }
    return {"best": found, "tried": tried}


def on_cpu(spec: str, target: int, room_bytes: int) -> Row:
    """Find the largest candidate that runs on the CPU in two of three processes, for there runs differ."""
    tried: list[tuple[int, int]] = []
    for size in reversed(candidates(target, "uneven")):
        given = {"spec": spec, "size": size, "steps": 1 if size == target else 2, "room_bytes": room_bytes}
        ran = sum(bool(apart(trials.fits_on_cpu, given, {}).get("ok")) for _ in range(_TIMES))
        tried.append((size, ran))
        if 2 * ran > _TIMES:
            return {"size": size, "steps": -(-target // size), "tried": tried}
    return {"size": None, "steps": None, "tried": tried}


def _peaks(spec: str, sizes: Sequence[tuple[int, int]], variables: Variables, enough_bytes: int) -> Peaks:
    given = {"spec": spec, "sizes": sizes, "limit_bytes": ROOM_BYTES, "enough_bytes": enough_bytes}
    row = apart(trials.peaks, given, variables)
    if "crash" in row:
        raise RuntimeError(row["crash"])
    found: Peaks = row["peaks"]
    return found


def _sizes(largest: int) -> list[tuple[int, int]]:
    """Give 1, 2, 3, 4, 6, 8, 12 ... up to the largest and one beyond, each for two micro-steps."""
    powers = [1 << exponent for exponent in range(largest.bit_length() + 1)]
    return [(size, 2) for size in sorted({size for power in powers for size in (power, 3 * power // 2)})]


def _live(peaks: Peaks, size: int) -> float:
    """Give what a size allocates at its peak, on the line between the sizes that were run."""
    for (low, _, at_low, _), (high, _, at_high, _) in pairwise(peaks):
        if size <= high:
            return at_low + (at_high - at_low) * (size - low) / (high - low)
    return float("inf")

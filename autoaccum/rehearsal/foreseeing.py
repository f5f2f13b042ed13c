"""What each size that may be the answer will need, and how little it can do with: the curve that a search starts with.

Where nothing presses it the allocator takes more than it must; near the limit it gives cached blocks back, and a
convolution does without its workspace. So each size is run once more under ever closer limits, which takes tenths of
a second on a virtual GPU, and an out-of-memory crash each on a real one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from autoaccum.records import Foreseen, Sample
from autoaccum.rehearsal.stage import Stage

_FROM, _TO = 0.7, 1.1  # of the limit: what is foreseen of sizes between
_MOST_SIZES = 12
_MOST_SECONDS = 30.0  # then what was seen so far will do
_CLOSE = 0.005  # of what is live: as near as limits are looked for


def foresee(stage: Stage, sizes: Sequence[int], limit_bytes: int) -> tuple[Foreseen, ...]:
    """Give what is seen of the ascending sizes near the limit and of two below; nothing where nothing is recorded."""
    first = stage.run(next((size for size in sizes if size > 1), sizes[-1]), alone=False)
    if first.computing_bytes is None:
        return ()
    seen, began = [], time.monotonic()
    for size in _near(stage, sizes, limit_bytes):
        if time.monotonic() - began > _MOST_SECONDS:
            break
        seen.append(_foreseen(stage, size))
    return tuple(each for each in seen if each is not None)


def _near(stage: Stage, sizes: Sequence[int], limit_bytes: int) -> Sequence[int]:
    """Give the sizes near the limit, or some of them; and the smallest and the largest below."""
    ran = sorted((s.micro_batch, s.computing_bytes or 0) for s in stage.samples() if s.ok and s.accumulation_steps > 1)
    (x0, y0), (x1, y1) = ran[0], ran[-1]
    slope = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
    live = {size: y1 + slope * (size - x1) for size in sizes}
    gradients = 0 if stage.model is None else stage.model.gradient_bytes  # which do not stay for the largest size
    near = [size for size in sizes if _FROM * limit_bytes <= live[size] <= _TO * limit_bytes + gradients]
    if len(near) > _MOST_SIZES:
        last = len(near) - 1
        near = [near[round(place * last / (_MOST_SIZES - 1))] for place in range(_MOST_SIZES)]
    below = [size for size in sizes if live[size] < _FROM * limit_bytes and (size > 1 or len(sizes) == 1)]
    return sorted({*below[:1], *below[-1:], *near})


def _foreseen(stage: Stage, size: int) -> Foreseen | None:
    sample = stage.run(size, alone=False)
    if not sample.ok or sample.computing_bytes is None:
        return None
    return Foreseen(
        micro_batch=size,
        resident_bytes=sample.resident_bytes or 0,
        computing_bytes=sample.computing_bytes,
        held_bytes=sample.held_bytes or 0,
        step_bytes=sample.step_bytes or 0,
        least_bytes=_least(stage, sample),
    )


def _least(stage: Stage, sample: Sample) -> int:
    """Give the lowest limit under which the size ran: mostly it is what could not be given back, sometimes less."""
    too_low, enough = sample.computing_bytes or 0, sample.peak_reserved_bytes or 0
    close = round(_CLOSE * too_low)
    held = sample.held_bytes or 0
    limits = [held - 2 * close, held + close]
    while enough - too_low > close:
        limit = limits.pop(0) if limits else (too_low + enough) // 2
        if not too_low < limit < enough:
            continue
        if stage.runs_within(sample.micro_batch, limit):
            enough = limit
        else:
            too_low = limit
    return enough

"""Samples to a memory model and a time model. Pure: no torch, no files.

Memory is a maximum of two lines: at small sizes the peak may sit in the optimizer's step, where it
does not depend on the size; beyond that it grows with every sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoaccum.records import MemoryModel, Sample

Point = tuple[float, float]
_ENOUGH = 2  # points for a line


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeModel:
    """The seconds of one update: fixed + per_sample * m for each micro-batch, and the optimizer once."""

    fixed_seconds: float
    seconds_per_sample: float
    optimizer_seconds: float

    def update_seconds(self, micro_batches: Sequence[int]) -> float:
        """Predict one whole update."""
        return (
            self.fixed_seconds * len(micro_batches)
            + self.seconds_per_sample * sum(micro_batches)
            + self.optimizer_seconds
        )


def fit_memory(samples: Sequence[Sample]) -> MemoryModel | None:
    """Fit the memory model on what ran; None if that tells too little.

    Size 1 is special, and the confirming trial runs in another process: both are left out. What ran under pressure
    reserved less than it would have liked to, and is left out where there is enough else. A single size will do where
    it is known what does not grow with it.
    """
    ran = [s for s in samples if s.ok and s.micro_batch > 1 and s.phase != "confirm"]
    kept = max((s.resident_bytes or 0 for s in ran if s.accumulation_steps > 1), default=0)
    reserved = {}
    for sample in sorted(ran, key=lambda s: -(s.alloc_retries or 0)):  # at the same size, without pressure is better
        # Trials of one micro-step lack resident gradients.
        lacks = 0 if sample.accumulation_steps > 1 else kept - (sample.resident_bytes or kept)
        if sample.accumulation_steps > 1 or lacks > 0:
            reserved[sample.micro_batch] = (sample.peak_reserved_bytes or 0) + lacks, bool(sample.alloc_retries)
    relaxed = [size for size, (_, pressed) in reserved.items() if not pressed]
    usable = relaxed if len(relaxed) >= _ENOUGH else list(reserved)
    points = sorted((float(size), float(reserved[size][0])) for size in usable)
    if len(points) == 1 and kept:
        points.insert(0, (0.0, float(min(kept, points[0][1]))))
    if len(points) < _ENOUGH:
        return None
    overhead = max((s.device_used_bytes or 0) - (s.peak_reserved_bytes or 0) for s in ran)
    floor, fixed, slope, miss = _best_fit(points, kept)
    return MemoryModel(
        fixed_bytes=round(fixed),
        bytes_per_sample=round(slope),
        overhead_bytes=overhead,
        floor_bytes=round(floor),
        worst_miss_bytes=round(miss),
        largest_size=int(points[-1][0]),
        miss_ahead=_miss_ahead(points, kept, overhead),
    )


def fit_time(samples: Sequence[Sample]) -> TimeModel | None:
    """Fit the time model on what ran; None if nothing was timed."""
    points: dict[float, float] = {}
    optimizer = []
    for sample in samples:
        if sample.ok and sample.step_seconds is not None and sample.optimizer_seconds is not None:
            computing = sample.step_seconds - sample.optimizer_seconds
            points[float(sample.micro_batch)] = computing / sample.accumulation_steps
            optimizer.append(sample.optimizer_seconds)
    if not points:
        return None
    if len(points) == 1:
        ((size, seconds),) = points.items()
        fixed, slope = 0.0, seconds / size
    else:
        # A miss of one percent counts the same at every size.
        fixed, slope = _line(list(points.items()), weigh=lambda seconds: 1 / max(seconds, 1e-9) ** 2)
        if fixed < 0:
            fixed, slope = 0.0, sum(points.values()) / sum(points)
    return TimeModel(
        fixed_seconds=fixed,
        seconds_per_sample=max(0.0, slope),
        optimizer_seconds=sorted(optimizer)[len(optimizer) // 2],
    )


def _best_fit(points: Sequence[Point], kept: int) -> tuple[float, float, float, float]:
    """Give the fit that misses least, with its worst miss.

    A line that leaves less for a size of none than is kept whatever the size is noise, taken for a floor.
    """
    plain, *others = (_flat_then_line(points, flat) for flat in range(len(points) - 1))
    return min([plain, *(fit for fit in others if not kept or fit[1] >= kept)], key=lambda fit: fit[3])


def _miss_ahead(points: Sequence[Point], kept: int, overhead: int) -> float | None:
    """Give by what share of the device's bytes the sizes up to half of the largest miss it: a look one doubling ahead.

    Those between are left out: they are so near that looking over the rest of the way is no test.
    """
    size, peak = points[-1]
    smaller = [point for point in points if 2 * point[0] <= size]
    if len(smaller) < 2:
        return None
    floor, fixed, slope, _ = _best_fit(smaller, kept)
    return abs(max(floor, fixed + slope * size) - peak) / (overhead + peak) if overhead + peak > 0 else None


def _flat_then_line(points: Sequence[Point], flat: int) -> tuple[float, float, float, float]:
    """Fit with the first `flat` points on the floor; give floor, intercept, slope and worst miss."""
    floor = max((y for _, y in points[:flat]), default=0.0)
    fixed, slope = _line(points[flat:])
    miss = max(abs(max(floor, fixed + slope * x) - y) for x, y in points)
    return floor, fixed, slope, miss


def _line(points: Sequence[Point], weigh: Callable[[float], float] = lambda _: 1.0) -> tuple[float, float]:
    """Give intercept and slope of the weighted least-squares line; it never falls."""
    weights = [weigh(y) for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    slope = max(0.0, slope)
    return mean_y - slope * mean_x, slope

"""Peaks that were measured on a real GPU: read, and cleaned of runs that crashed.

A run that crashed leaves a reading all the same. None of the rules below looks at a prediction:

- from 39,000 MiB on the card was full;
- readings that are the same for two batches, to 2 %, are of runs that ended before they trained;
- memory grows by about as much for each further sample. Of the rest the largest set of readings is kept whose growth
  for each sample differs by no more than a factor of two; two readings alone count only for the two smallest batches.

`plain=True` is the rule in short: up to the first reading that is full, falls or stays flat as the batch doubles.
"""

from __future__ import annotations

import csv
import hashlib
from itertools import combinations, pairwise
from pathlib import Path

Peaks = dict[str, dict[int, float]]  # MiB by model and batch

FULL_MIB = 39_000
_FLAT = 1.02
_UNEVEN = 2.0


def read(path: Path, *, plain: bool = False) -> Peaks:
    """Give the peaks of a CSV file with the columns model, batch and measured_mib, without what crashed."""
    raw: Peaks = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            raw.setdefault(row["model"], {})[int(row["batch"])] = float(row["measured_mib"])
    cleaned = {model: _growing(peaks) if plain else _even(peaks) for model, peaks in raw.items()}
    return {model: peaks for model, peaks in cleaned.items() if peaks}


def _growing(peaks: dict[int, float]) -> dict[int, float]:
    kept: dict[int, float] = {}
    last = 0.0
    for batch, peak in sorted(peaks.items()):
        if peak >= FULL_MIB or peak <= _FLAT * last:
            break
        kept[batch] = last = peak
    return kept


def _even(peaks: dict[int, float]) -> dict[int, float]:
    smallest = tuple(sorted(peaks)[:2])
    distinct = {
        batch: peak
        for batch, peak in sorted(peaks.items())
        if peak < FULL_MIB and not any(_same(peak, other) for each, other in peaks.items() if each != batch)
    }
    for count in range(len(distinct), 1, -1):
        for chosen in combinations(distinct, count):  # those of small batches first: large ones crash
            if _grows_evenly(chosen, distinct) and (count > 2 or chosen == smallest):
                return {batch: distinct[batch] for batch in chosen}
    return {}


def _same(one: float, other: float) -> bool:
    return max(one, other) <= _FLAT * min(one, other)


def _grows_evenly(batches: tuple[int, ...], peaks: dict[int, float]) -> bool:
    growth = [(peaks[b] - peaks[a]) / (b - a) for a, b in pairwise(batches)]
    return min(growth) > 0 and max(growth) <= _UNEVEN * min(growth)


def for_calibration(model: str) -> bool:
    """Whether a model belongs to the half that constants and bands are found from; by its name, so for good."""
    return hashlib.sha256(f"half {model}".encode()).digest()[-1] % 2 == 0

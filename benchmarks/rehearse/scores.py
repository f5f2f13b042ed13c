"""How well predictions hold: errors, bands, and whether the right size would have been named. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from autoaccum.rehearsal import cards
from autoaccum.rehearsal.bands import Band, forecast
from autoaccum.rehearsal.constants import DEFAULT

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Point:
    """One model at one batch, in MiB."""

    model: str
    batch: int
    measured: float
    reserved: float  # as rehearsed
    band: Band

    def error(self, constant: float) -> float:
        """Give the prediction's error as a share of what was measured; below zero, it was too low."""
        return (self.reserved + constant) / self.measured - 1

    def share(self, constant: float) -> float:
        """Give by what share more was held than reserved and the constant."""
        return (self.measured - constant) / self.reserved - 1

    def safe(self, constant: float) -> float:
        """Give what a plan needs, its margin included."""
        return constant + self.reserved * (1 + self.band.margin)

    def inside(self, constant: float) -> bool:
        """Whether what was measured lies within the band."""
        return self.band.low <= self.share(constant) <= self.band.high


def quantile(values: Iterable[float], share: float) -> float:
    """Give the value below which `share` of them lie."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = ordered[int(place)]
    above = ordered[min(int(place) + 1, len(ordered) - 1)]
    return below + (above - below) * (place - int(place))


def fit_constant(points: Sequence[Point]) -> int:
    """Give the constant, in MiB, with which the median error is smallest."""
    return min(range(200, 3000, 5), key=lambda constant: median(abs(p.error(constant)) for p in points))


def fit_band(points: Sequence[Point], constant: float) -> tuple[float, float, float]:
    """Give the ends of the band, and the margin, as shares of what is reserved.

    The band holds 94 of 100 of these points, so that it holds 90 of others: the points of one model go together.
    """
    shares = [point.share(constant) for point in points]
    return min(0.0, quantile(shares, 0.03)), max(0.0, quantile(shares, 0.97)), max(0.0, quantile(shares, 0.9))


def with_default(points: Sequence[Point]) -> tuple[list[float], int]:
    """Give the errors with the constant of a card that was never probed, and how many points lie within that band."""
    errors, inside = [], 0
    for point in points:
        expected = forecast(round(point.reserved * MIB), point.band, DEFAULT)
        errors.append(abs(expected.peak_bytes / MIB / point.measured - 1))
        inside += expected.low_bytes <= point.measured * MIB <= expected.high_bytes
    return errors, inside


@dataclass(frozen=True, slots=True)
class Named:
    """How often the right batch is named, of those that were measured, on GPUs of several sizes."""

    cases: int
    right: int
    too_large: int


def name_sizes(points: Sequence[Point], constant: float) -> Named:
    """Name the largest batch for each model and each kind of GPU, where the measurements tell which is right."""
    by_model: dict[str, list[Point]] = {}
    for point in points:
        by_model.setdefault(point.model, []).append(point)
    cases = right = too_large = 0
    for own in by_model.values():
        own.sort(key=lambda point: point.batch)
        for total in _totals():
            fitting = [p.batch for p in own if p.measured <= total]
            if not fitting or len(fitting) == len(own):
                continue  # the answer lies outside of what was measured
            named = max((p.batch for p in own if p.safe(constant) <= total), default=0)
            cases += 1
            right += named == max(fitting)
            too_large += named > max(fitting)
    return Named(cases=cases, right=right, too_large=too_large)


def _totals() -> list[float]:
    """Give the sizes of the GPUs that a rehearsal knows, in MiB, up to the one that was measured on."""
    return sorted({card.total_bytes / MIB for card in cards.known() if card.total_bytes <= 40_400 * MIB})

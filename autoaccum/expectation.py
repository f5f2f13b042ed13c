"""What a size that was not run will need: bounds, from what ran and from what a rehearsal foresaw. Pure.

Outside of the optimizer's step, live tensors grow along a line with the size: from what is resident whatever the size
(`firm`). The allocator cannot make full use of what it holds, and needs more (`slack`): in proportion to the tensors
that come and go, more or less. In the optimizer's step the need does not depend on the size. So what a size needs is
known up to an error that grows with the distance from what ran: at the least, and at the most. Between the two only a
run decides.

    Fitted     the line and the slack as the trials showed them. A single trial bounds the slope, two give it.
    Rehearsed  both as a rehearsal saw them, size by size, moved to where the largest trial was.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autoaccum.records import Foreseen, Outcome, Prior, Sample

TOO_LARGE = (Outcome.OOM, Outcome.KILLED, Outcome.TIMED_OUT)
_APART = 1.5  # times the smaller size, from which on two sizes tell the slope
# Shares of the tensors that come and go. Chosen by hand on the cases of benchmarks/search, none held out.
_LEAST = 0.02  # what any size needs besides its live tensors
_BELOW = 0.05  # what a size may need less than all before it
_ABOVE, _ABOVE_DOUBLED = 0.010, 0.045  # what it may need more than the largest before it, and with every doubling
_GIVEN_BACK = 0.4  # of the scratch: what under pressure is had from it, or from better places for blocks
_FORESEEN, _FORESEEN_DOUBLED = 0.010, 0.015
_SURPRISE = 0.06  # what a size that did not fit is taken to have needed more than there was


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What a size needs on the device: at the least, and at the most."""

    least_bytes: float
    most_bytes: float


UNKNOWN = Bounds(least_bytes=0.0, most_bytes=math.inf)


class Expectation:
    """Bounds for every size, after the trials so far."""

    def __init__(
        self,
        samples: Sequence[Sample],
        prior: Prior | None,
        *,
        limit_bytes: int,
        whole: int,
        gradient_bytes: int,
        meter_error_bytes: int = 0,
        strict: bool = False,
    ) -> None:
        self._strict = strict  # by live tensors alone: what is possible at all, and not what is likely
        self._whole = whole  # the size that would be run without accumulation: gradients do not stay
        self._gradients = gradient_bytes
        ok = [s for s in samples if s.ok]
        # What an earlier version ran, and nobody looked at closely, is not on the line of the others.
        looked_at = [s for s in ok if s.computing_bytes is not None] or ok
        ran = sorted((_Seen(s, gradient_bytes) for s in looked_at), key=lambda seen: seen.size)
        overheads = [(s.device_used_bytes or 0) - (s.peak_reserved_bytes or 0) for s in samples if s.ok]
        self._overhead = max(overheads, default=0 if prior is None else prior.overhead_bytes)
        self._room = limit_bytes - self._overhead
        self._failed = [s for s in samples if s.outcome in TOO_LARGE and s.micro_batch > (ran[-1].size if ran else 0)]
        self._curve: _Curve | None = None
        if prior is not None and prior.sizes:
            self._curve = _Rehearsed(prior, ran)
        elif ran:
            self._curve = _Fitted(ran, meter_error_bytes)

    @property
    def has_slope(self) -> bool:
        """Whether it is known how fast the need grows."""
        return self._curve is not None and self._curve.has_slope

    def bounds(self, size: int) -> Bounds:
        """Give what a size needs; no bounds, where nothing is known."""
        curve = self._curve
        if curve is None:
            return UNKNOWN
        firm, less = curve.firm(size), self._gradients if size == self._whole else 0
        moving = max(0.0, firm - curve.resident)
        low, high = curve.slack(size)
        least = firm + moving * (0.0 if self._strict else low) if curve.has_slope else curve.resident
        most = firm + moving * max(high, self._shown_by_failures())
        return Bounds(
            least_bytes=self._overhead + max(curve.step, least - less),
            most_bytes=self._overhead + max(curve.step, most - less),
        )

    def _shown_by_failures(self) -> float:
        """Give the slack of sizes that did not fit: they took all there was, and wanted more."""
        slack = 0.0
        for sample in self._failed if self._curve is not None else ():
            assert self._curve is not None  # noqa: S101  (for the type checker)
            firm = self._curve.firm(sample.micro_batch) - (self._gradients if sample.accumulation_steps == 1 else 0)
            slack = max(slack, (self._room - firm) / max(1.0, firm - self._curve.resident))
        return slack + _SURPRISE * len(self._failed) if slack > 0 else 0.0


class _Seen:
    """A trial that ran, as it would have been with gradients that stay."""

    def __init__(self, sample: Sample, gradient_bytes: int) -> None:
        kept = gradient_bytes if sample.accumulation_steps == 1 else 0
        self.size = sample.micro_batch
        peak = float(sample.peak_allocated_bytes or 0) + kept
        self.scratch = float(sample.scratch_bytes or 0)
        self.resident = float(sample.resident_bytes or 0) + kept
        self.firm = peak if sample.computing_bytes is None else float(sample.computing_bytes) + kept
        held = sample.peak_reserved_bytes if sample.held_bytes is None else sample.held_bytes
        self.held = float(held or 0) + kept
        self.step = float(sample.step_bytes or 0)

    @property
    def moving(self) -> float:
        """What comes and goes."""
        return max(1.0, self.firm - self.resident)

    @property
    def slack(self) -> float:
        """What was held beyond live tensors, as a share of what comes and goes."""
        return max(0.0, self.held - self.firm) / self.moving

    @property
    def elastic(self) -> float:
        """What was scratch, likewise."""
        return self.scratch / self.moving


class _Curve(Protocol):
    resident: float
    step: float  # what the optimizer's step needs
    has_slope: bool

    def firm(self, size: int) -> float:
        """Give the live bytes that are expected at a size, with gradients that stay."""

    def slack(self, size: int) -> tuple[float, float]:
        """Give what is needed beyond that, as a share of what comes and goes: at the least, and at the most."""


class _Fitted:
    """As the trials showed it."""

    has_slope: bool

    def __init__(self, ran: Sequence[_Seen], meter_error_bytes: int) -> None:
        self._largest = largest = ran[-1]
        self.resident, self.step, self.has_slope = largest.resident, largest.step, len(ran) > 1
        floor = min(_LEAST, *(seen.slack for seen in ran))  # none, where nothing was held in vain
        self._least = max(floor, min(seen.slack - seen.elastic for seen in ran) - _BELOW)
        # Under pressure scratch is done without, and blocks come to lie otherwise.
        self._most = largest.slack - _GIVEN_BACK * min(largest.slack, largest.elastic)
        if self.has_slope:
            smaller = ([s for s in ran if s.size * _APART <= largest.size] or ran[:1])[-1]
            self._slope = max(0.0, largest.firm - smaller.firm) / max(1, largest.size - smaller.size)
        else:
            self._slope = (largest.moving + meter_error_bytes) / largest.size  # it cannot be steeper

    def firm(self, size: int) -> float:
        return self._largest.firm + self._slope * (size - self._largest.size)

    def slack(self, size: int) -> tuple[float, float]:
        doublings = math.log2(max(1.0, size / self._largest.size))
        return self._least, self._most + _ABOVE + _ABOVE_DOUBLED * doublings


class _Rehearsed:
    """As a rehearsal saw it, moved to where the largest trial was."""

    has_slope = True

    def __init__(self, prior: Prior, ran: Sequence[_Seen]) -> None:
        self._sizes = prior.sizes
        self._margin = prior.margin
        self._anchor = anchor = ran[-1] if ran else None
        self.resident = float(self._sizes[0].resident_bytes) if anchor is None else anchor.resident
        self.step = float(self._sizes[0].step_bytes) if anchor is None else anchor.step
        self._each = self._more_slack = 0.0  # how much more a sample takes here than foreseen
        if anchor is not None:
            self._each = (anchor.firm - self._at(anchor.size, _firm)) / anchor.size
            held = self._at(anchor.size, _held) - self._at(anchor.size, _firm)
            self._more_slack = anchor.slack - held / anchor.moving

    def firm(self, size: int) -> float:
        return self._at(size, _firm) + self._each * size

    def slack(self, size: int) -> tuple[float, float]:
        foreseen = self._at(size, _firm)
        moving = max(1.0, foreseen - self.resident)
        share = max(0.0, self._at(size, _least) - foreseen) / moving
        if self._anchor is None:
            return max(min(_LEAST, share), share - self._margin), share + self._margin
        error = _FORESEEN + _FORESEEN_DOUBLED * abs(math.log2(size / self._anchor.size))
        least = max(min(_LEAST, share), share + min(0.0, self._more_slack) - error)
        return least, share + max(0.0, self._more_slack) + error

    def _at(self, size: int, of: _Figure) -> float:
        """Give a figure at a size: on the line between its neighbours, or beyond the ends on that between both."""
        known = self._sizes
        place = bisect_right([each.micro_batch for each in known], size)
        a, b = (known[0], known[-1]) if place in (0, len(known)) else (known[place - 1], known[place])
        way = (size - b.micro_batch) / (b.micro_batch - a.micro_batch) if b is not a else 0.0
        return of(b) + (of(b) - of(a)) * way


_Figure = Callable[[Foreseen], float]


def _firm(seen: Foreseen) -> float:
    return float(seen.computing_bytes)


def _held(seen: Foreseen) -> float:
    return float(seen.held_bytes)


def _least(seen: Foreseen) -> float:
    return float(seen.least_bytes)

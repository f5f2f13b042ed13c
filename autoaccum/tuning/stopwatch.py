"""The time of one whole update of a candidate, measured in a worker that runs as training will.

A window is one update, or the first micro-steps of one with the optimizer's step behind them, where a whole one would
take long: what was computed is then scaled to the samples of a whole update. Warm-up is left out. Windows are repeated
until their median is known to 3 %, or the time is up. Two candidates are compared by taking turns: whatever slows the
machine for a while slows both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from autoaccum.isolate import Answer
from autoaccum.plans import Plan
from autoaccum.records import Knobs, Sample, Trial, Window
from autoaccum.tuning.intervals import ENOUGH, WORTH, WORTH_ACROSS_PROCESSES, Comparison, Estimate, compare, estimate

WELL_KNOWN = 0.03  # the width of the interval, as a share of the median, at which no more windows are run
_WINDOW_SECONDS = 0.25  # about as long as a window is, where a whole update takes longer
_CHUNK_SECONDS = 0.5  # about as long as an order to the worker takes
_CHUNK_SECONDS_OF_ENERGY = 1.0  # NVML's counter moves every tenth of a second or so
_MOST_WINDOWS = 64  # of one order
_FEWEST_WINDOWS = 6  # from here on all windows enclose the median for certain, to 95 %
_FEW_WINDOWS = 4  # are enough where they hardly differ
_ROUNDS = (2, 10)  # of a duel: at least, at most
_TURNS_OF_A_PROCESS = 2  # in a duel of processes: then a new one takes its place, for no two are laid out alike
_ENERGIES = 5  # of each side of a duel: each is a second's, where a window of time is much less

_SEATS = ("incumbent", "challenger")


@dataclass(kw_only=True, slots=True)
class Measured:
    """What a candidate's windows showed."""

    sample: Sample  # of the last order: the peak, and what went wrong
    seconds: Estimate | None = None  # of one whole update
    joules_per_sample: Estimate | None = None
    forward_seconds: float | None = None
    optimizer_seconds: float | None = None
    warm_up_seconds: float = 0.0  # of the first window
    given_up: bool = False


@dataclass(kw_only=True, slots=True)
class _Series:
    """The windows of one candidate so far."""

    plan: Plan
    knobs: Knobs
    steps: int  # micro-steps of a window
    windows: list[Window] = field(default_factory=list)
    energies: list[float] = field(default_factory=list)  # joules per sample, one for each order

    def add(self, windows: Sequence[Window]) -> None:
        self.windows.extend(windows)
        seconds = sum(window.seconds for window in windows)
        joules = sum(window.joules or 0.0 for window in windows)
        # Fewer seconds are a few ticks of the driver's counter, or none.
        if joules > 0 and seconds >= _CHUNK_SECONDS_OF_ENERGY / 2 and all(w.joules is not None for w in windows):
            update = median(self._whole(window) for window in windows)
            self.energies.append(joules / seconds * update / self.plan.rank_batch)

    def seconds(self) -> list[float]:
        return [self._whole(window) for window in self.windows]

    def _whole(self, window: Window) -> float:
        """Give the seconds of a whole update: the first micro-step is there once, the others are scaled."""
        if window.samples == self.plan.rank_batch:
            return window.seconds
        first, others = self.plan.micro_batches[0], window.seconds - window.optimizer_seconds - window.first_seconds
        share = (self.plan.rank_batch - first) / (window.samples - first)
        return window.first_seconds + others * share + window.optimizer_seconds

    def share(self, window: Window) -> float:
        """Give the part of a whole update's computing that a window did."""
        return window.samples / self.plan.rank_batch


class Bench(Protocol):
    """Where trials are timed: a lab."""

    def time(self, trial: Trial, seat: str = "") -> Answer:
        """Run one trial, in the worker of this seat."""

    def leave(self, seat: str) -> None:
        """End the worker of a seat."""


class Stopwatch:
    """Times candidates.

    On the CPU what ran before in a process tells: malloc keeps memory in larger pieces, and a small size was 7 %
    faster after a large one than in training. There, `fresh`, each candidate has a process of its own.
    """

    def __init__(
        self, bench: Bench, *, energy: bool, fresh: bool, room_for_two: bool, clock: Callable[[], float]
    ) -> None:
        self._bench = bench
        self._energy = energy
        self._fresh = fresh
        self.worth = WORTH_ACROSS_PROCESSES if fresh else WORTH  # by how much a challenger must be faster
        self._own_processes = fresh and room_for_two  # in a duel: two can hold what one may hold
        self._clock = clock

    def measure(self, plan: Plan, knobs: Knobs, *, seconds: float, give_up: Callable[[Measured], bool]) -> Measured:
        """Time windows until the median is well known, `seconds` are over, or `give_up` says so."""
        series = _Series(plan=plan, knobs=knobs, steps=min(2, plan.accumulation_steps))
        answer = self._bench.time(self._order(series, 3, fresh=self._fresh))
        began = self._clock()  # what a process takes to start, and to compile, is not the windows' fault
        measured = Measured(sample=answer.sample)
        if not answer.sample.ok or not answer.windows:
            return measured
        warm_up, *windows = answer.windows
        measured.warm_up_seconds = warm_up.seconds
        series.steps = self._steps(plan, windows[-1])
        if series.steps == min(2, plan.accumulation_steps):
            series.add(windows)  # else these were too short, and only told how long a window should be
        while True:
            if series.windows:
                _sum_up(measured, series)
                if give_up(measured):
                    measured.given_up = True
                    return measured
                if self._known(measured) or self._clock() - began > seconds:
                    return measured
            answer = self._bench.time(self._order(series, self._count(series, windows[-1]), warm=True))
            measured.sample = answer.sample
            if not answer.sample.ok:
                return measured
            series.add(answer.windows)

    def duel(
        self, incumbent: tuple[Plan, Knobs], challenger: tuple[Plan, Knobs], *, seconds: float
    ) -> Comparison | Sample:
        """Measure two candidates in turns; give the comparison, or the sample of the one that could not be run."""
        began, rounds = self._clock(), 0
        least = 2 * _TURNS_OF_A_PROCESS if self._own_processes else _ROUNDS[0]
        sides = [
            _Series(plan=plan, knobs=knobs, steps=min(2, plan.accumulation_steps))
            for plan, knobs in (incumbent, challenger)
        ]
        if self._own_processes:
            self._bench.leave("")  # three would be one too many
        try:
            while True:
                for index in (0, 1) if rounds % 2 == 0 else (1, 0):
                    sample = self._turn(sides[index], _SEATS[index], first=rounds % _TURNS_OF_A_PROCESS == 0)
                    if not sample.ok:
                        return sample
                rounds += 1
                values = [self._values(side) for side in sides]
                late = rounds >= _ROUNDS[1] or self._clock() - began > seconds
                if rounds >= least and (late or all(values)):
                    result = compare(values[0], values[1], rounds, self.worth, _ENERGIES if self._energy else ENOUGH)
                    if late or result.settled:
                        return result
        finally:
            for seat in _SEATS:
                self._bench.leave(seat)

    def _turn(self, side: _Series, seat: str, *, first: bool) -> Sample:
        """Add what one side shows in one turn; its first window is left out, for the other side was here before."""
        goes_on = self._own_processes and not first
        count = max(2, self._count(side, side.windows[-1])) if side.windows else 2
        order = self._order(side, 1 + count, warm=goes_on, fresh=self._fresh and not goes_on)
        answer = self._bench.time(order, seat if self._own_processes else "")
        if answer.sample.ok:
            side.add(answer.windows[1:])
            side.steps = self._steps(side.plan, answer.windows[-1])
        return answer.sample

    def _values(self, side: _Series) -> list[float]:
        return side.energies if self._energy else side.seconds()

    def _order(self, series: _Series, windows: int, *, warm: bool = False, fresh: bool = False) -> Trial:
        return Trial(
            micro_batch=series.plan.micro_batch,
            accumulation_steps=series.steps,
            micro_batches=series.plan.micro_batches,
            updates=windows,
            phase="tune",
            warm=warm,
            fresh=fresh,
            knobs=series.knobs,
        )

    def _steps(self, plan: Plan, window: Window) -> int:
        """Give the micro-steps of a window: all of an update, or as many as take about a quarter of a second."""
        each = (window.seconds - window.optimizer_seconds) / window.samples * plan.micro_batch
        wanted = int(_WINDOW_SECONDS / max(each, 1e-9)) + 1
        return min(plan.accumulation_steps, max(2, wanted))

    def _count(self, series: _Series, window: Window) -> int:
        share = series.steps * series.plan.micro_batch / window.samples
        each = (window.seconds - window.optimizer_seconds) * share + window.optimizer_seconds
        if self._energy:
            return max(1, math.ceil(_CHUNK_SECONDS_OF_ENERGY / max(each, 1e-9)))
        return max(1, min(_MOST_WINDOWS, round(_CHUNK_SECONDS / max(each, 1e-9))))

    def _known(self, measured: Measured) -> bool:
        found = measured.joules_per_sample if self._energy else measured.seconds
        if found is None:
            return False
        if found.values >= _FEWEST_WINDOWS:
            return found.width <= WELL_KNOWN
        return found.values >= _FEW_WINDOWS and found.width <= WELL_KNOWN / 3


def _sum_up(measured: Measured, series: _Series) -> None:
    measured.seconds = estimate(series.seconds())
    measured.joules_per_sample = estimate(series.energies) if series.energies else None
    measured.forward_seconds = median(w.forward_seconds / series.share(w) for w in series.windows)
    measured.optimizer_seconds = median(w.optimizer_seconds for w in series.windows)

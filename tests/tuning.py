"""A bench whose trials are made up: they take no time, and a clock says how much they would have taken."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autoaccum.isolate import Answer
from autoaccum.plans import Plan
from autoaccum.records import PLAIN, Knobs, MemoryModel, Outcome, Sample, Trial, Window
from autoaccum.solve import candidates
from autoaccum.tuning.memory import MemoryBook
from autoaccum.tuning.results import Measurement
from autoaccum.tuning.space import Candidate, Space

PROCESS_SECONDS = 1.0  # to start one


@dataclass
class MadeUpBench:
    """Micro-steps of `seconds(size, knobs)` and an optimizer's step of `optimizer_seconds`, with some noise."""

    seconds: Callable[[int, Knobs], float]
    optimizer_seconds: float = 0.01
    adding_seconds: float = 0.0  # to the gradient that is there, from the second micro-step on
    noise: float = 0.0
    seed: int = 0
    bytes_of: Callable[[int, Knobs], int] = lambda size, knobs: size
    limit_bytes: int = 1 << 30
    fails: Callable[[Trial], bool] = lambda trial: False
    joules_per_second: Callable[[Knobs], float | None] = lambda knobs: None
    joules_per_tick: float = 0.0
    now: float = 0.0
    orders: list[tuple[str, Trial]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._used = 0.0
        self._warm: set[tuple[str, int, Knobs]] = set()

    def clock(self) -> float:
        return self.now

    def leave(self, seat: str) -> None:
        self.left.append(seat)

    def time(self, trial: Trial, seat: str = "") -> Answer:
        self.orders.append((seat, trial))
        self.now += PROCESS_SECONDS if trial.fresh else 0.0
        sample = Sample(
            trial=0,
            phase=trial.phase,
            micro_batch=trial.micro_batch,
            accumulation_steps=trial.accumulation_steps,
            outcome=Outcome.OK,
            device_used_bytes=self.bytes_of(trial.micro_batch, trial.knobs),
            options=trial.knobs.options,
        )
        if self.fails(trial):
            return Answer(sample=_ended(sample, Outcome.FAILED, "RuntimeError: no kernel"))
        if (sample.device_used_bytes or 0) > self.limit_bytes:
            return Answer(sample=_ended(sample, Outcome.OOM, "out of memory"))
        return Answer(sample=sample, windows=tuple(self._window(trial, seat, index) for index in range(trial.updates)))

    def _joules(self, used: float) -> float:
        """Give what a counter shows that moves in ticks."""
        before, self._used = self._used, self._used + used
        return self._ticks(self._used) - self._ticks(before)

    def _ticks(self, joules: float) -> float:
        return joules if self.joules_per_tick == 0 else joules // self.joules_per_tick * self.joules_per_tick

    def _window(self, trial: Trial, seat: str, index: int) -> Window:
        scale = max(0.2, self._random.gauss(1.0, self.noise)) if self.noise else 1.0
        steps = [scale * self.seconds(size, trial.knobs) for size in trial.sizes]
        steps[1:] = [step + self.adding_seconds for step in steps[1:]]
        steps[0] += 5.0 if index == 0 and not trial.warm else 0.0  # a warm-up that nobody must count
        first, computing = steps[0], sum(steps)
        seconds = computing + self.optimizer_seconds
        self.now += seconds
        watts = self.joules_per_second(trial.knobs)
        return Window(
            samples=sum(trial.sizes),
            seconds=seconds,
            first_seconds=first,
            forward_seconds=computing / 3,
            optimizer_seconds=self.optimizer_seconds,
            joules=None if watts is None else self._joules(watts * seconds),
        )


def _ended(sample: Sample, outcome: Outcome, message: str) -> Sample:
    return replace(sample, outcome=outcome, message=message)


def space_of(target: int, values: dict[str, tuple[object, ...]] | None = None, ground: Knobs = PLAIN) -> Space:
    """All even plans for a target, with these knobs."""
    sizes = candidates(target, "even")
    plans = {size: Plan.of(target_batch=target, micro_batch=size) for size in sizes}
    return Space(plans=plans, values=values or {}, ground=ground)


def book(space: Space, limit_bytes: int = 1 << 30, bytes_per_sample: int = 1, largest: int | None = None) -> MemoryBook:
    """What a search has found: sizes up to `largest` fit."""
    most = max(space.sizes) if largest is None else largest
    model = MemoryModel(
        fixed_bytes=0, bytes_per_sample=bytes_per_sample, overhead_bytes=0, floor_bytes=0, worst_miss_bytes=0
    )
    return MemoryBook(ground=space.ground, fits=lambda size: size <= most, model=model, limit_bytes=limit_bytes)


class Recorder:
    """A watcher that keeps what it sees."""

    def __init__(self) -> None:
        self.rows: list[Measurement] = []
        self.bests: list[int | None] = []

    def tuning_started(self, trials: int, seconds: float) -> None: ...

    def candidate_started(self, candidate: Candidate, done: int) -> None: ...

    def candidate_finished(self, row: Measurement, best: Measurement | None) -> None:
        self.rows.append(row)
        self.bests.append(None if best is None else best.trial)

"""The loop: ask for a candidate, measure it, tell the study, and let it challenge the incumbent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autoaccum.errors import WorkloadError
from autoaccum.records import Outcome, Sample, Trial
from autoaccum.search import FIRST_SIZE
from autoaccum.tuning.incumbent import Incumbent, candidate_of
from autoaccum.tuning.memory import MemoryBook
from autoaccum.tuning.proposals import instead, propose
from autoaccum.tuning.results import Fate, Measurement, Watcher
from autoaccum.tuning.space import Candidate
from autoaccum.tuning.stopwatch import Bench, Measured, Stopwatch
from autoaccum.tuning.study import Handle, Study

_PRUNE_FROM = 2  # windows that a trial has, before it can be given up
_SHARE_OF_A_TRIAL = 1 / 8  # of all the time, at most
_SHARE_OF_A_DUEL, _SHARE_OF_A_LATE_DUEL = 1 / 4, 1 / 8
_LEAST_SECONDS = 1.0  # that a trial has in any case
_IN_VAIN = 20  # suggestions in a row that do not fit, until there are no better ones to come


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What the tuning may spend."""

    trials: int
    seconds: float


@dataclass(kw_only=True)
class Tuner:
    """One process's work on a study."""

    study: Study
    bench: Bench
    memory: MemoryBook
    limits: Limits
    world_size: int
    watcher: Watcher
    energy: bool = False
    worth_uneven: float = 1.0  # how much faster an uneven plan must be than an even one
    fresh: bool = False  # a process for each candidate: what ran before in it would tell
    room_for_two: bool = True  # whether there is memory for two processes at once
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._stopwatch = Stopwatch(
            self.bench, energy=self.energy, fresh=self.fresh, room_for_two=self.room_for_two, clock=self.clock
        )
        self._began = self.clock()
        self.incumbent = Incumbent(self.study, self._stopwatch, energy=self.energy, worth_uneven=self.worth_uneven)

    @property
    def seconds(self) -> float:
        """What was spent so far."""
        return self.clock() - self._began

    def tune(self, first: Sequence[Candidate]) -> None:
        """Measure until the budget is spent or nothing is left to try; the incumbent is the one that won."""
        self.watcher.tuning_started(self.limits.trials, self.limits.seconds)
        self._remember()
        self.study.enqueue(first)
        space, fits, in_vain = self.study.space, self.memory.fits, 0
        while self.seconds < self.limits.seconds and self._spent() < self.limits.trials and in_vain < _IN_VAIN:
            asked = self.study.ask(
                lambda seen: propose(seen, space, fits), lambda suggestion, seen: instead(suggestion, seen, space, fits)
            )
            if asked is None:
                break
            row = self._one(*asked)
            in_vain = in_vain + 1 if row.outcome is Fate.INFEASIBLE else 0
        self.incumbent.judge_others(self._duel_seconds)
        if self.seconds < self.limits.seconds:
            self.incumbent.simplify(self._duel_seconds)

    def _at_most(self, share: float) -> float:
        """Give the seconds that something may take: a share of all there are, and no more than are left."""
        return max(_LEAST_SECONDS, min(share * self.limits.seconds, self.limits.seconds - self.seconds))

    def _duel_seconds(self) -> float:
        """Give the seconds of a duel; one that begins late may take longer than there is time, to be worth it."""
        return max(_SHARE_OF_A_LATE_DUEL * self.limits.seconds, self._at_most(_SHARE_OF_A_DUEL))

    def _spent(self) -> int:
        rows = self.study.measurements()
        return sum(row.outcome is not Fate.INFEASIBLE for row in rows) + self.study.running()

    def _one(self, trial: Handle, candidate: Candidate) -> Measurement:
        """Measure one candidate, tell the study, and see whether it is the new best."""
        self.watcher.candidate_started(candidate, self._spent() - 1)
        try:
            row, value = self._measured(trial, candidate)
        except BaseException:
            self.study.give_back(trial)
            raise
        self.study.tell(trial, row, value, self._excess(candidate, row))
        if row.outcome is Fate.FAILED and candidate.knobs == self.study.space.ground and self.incumbent.row is None:
            raise WorkloadError(f"{row.message} (micro-batch {row.micro_batch})")
        if row.outcome is Fate.OK:
            self.incumbent.challenge(row, self._duel_seconds)
        self.watcher.candidate_finished(row, self.incumbent.row)
        return row

    def _measured(self, trial: Handle, candidate: Candidate) -> tuple[Measurement, float | None]:
        row = Measurement(
            trial=trial.number,
            outcome=Fate.FAILED,
            micro_batch=candidate.micro_batch,
            accumulation_steps=self.study.space.plans[candidate.micro_batch].accumulation_steps,
            options=candidate.knobs.options,
            process=self.study.process,
        )
        refused = self._refused(candidate)
        if refused is not None:
            fate, message = refused
            return replace(row, outcome=fate, message=message, peak_bytes=self.memory.predicted(candidate)), None

        def give_up(measured: Measured) -> bool:
            found = measured.joules_per_sample if self.energy else measured.seconds
            if found is None or found.values < _PRUNE_FROM:
                return False
            return self.study.report(trial, found.low, found.values)

        measured = self._timed(candidate, give_up)
        if not measured.sample.ok or measured.seconds is None:
            self._note(candidate, measured.sample)
            return replace(row, outcome=_fate(measured.sample), message=measured.sample.message), None
        if self.energy and measured.joules_per_sample is None:
            return replace(row, message="the device did not tell what energy it used"), None
        self.memory.ran(candidate, measured.sample.device_used_bytes or 0)
        return self._filled(row, measured, candidate)

    def _timed(self, candidate: Candidate, give_up: Callable[[Measured], bool]) -> Measured:
        seconds = self._at_most(_SHARE_OF_A_TRIAL)
        plan = self.study.space.plans[candidate.micro_batch]
        return self._stopwatch.measure(plan, candidate.knobs, seconds=seconds, give_up=give_up)

    def _refused(self, candidate: Candidate) -> tuple[Fate, str] | None:
        """Give why a candidate is not measured: by the memory model, after one small trial where it has none yet."""
        small = replace(candidate, micro_batch=max(FIRST_SIZE, candidate.micro_batch // 2))
        if not self.memory.known(candidate.knobs) and small.micro_batch < candidate.micro_batch:
            order = Trial(micro_batch=small.micro_batch, phase="tune", knobs=candidate.knobs, fresh=self.fresh)
            sample = self.bench.time(order).sample
            if sample.ok:
                self.memory.ran(small, sample.device_used_bytes or 0)
            else:
                self._note(small, sample)
                return _fate(sample), sample.message
        if not self.memory.fits(candidate):
            return Fate.INFEASIBLE, "not run: predicted not to fit"
        return None

    def _note(self, candidate: Candidate, sample: Sample) -> None:
        if sample.outcome is not Outcome.FAILED:
            self.memory.did_not_fit(candidate)

    def _filled(self, row: Measurement, measured: Measured, candidate: Candidate) -> tuple[Measurement, float]:
        seconds, joules = measured.seconds, measured.joules_per_sample
        assert seconds is not None  # noqa: S101  (for the type checker)
        compiled = measured.warm_up_seconds - seconds.median if candidate.knobs.compile else None
        rank_batch = self.study.space.plans[candidate.micro_batch].rank_batch
        row = replace(
            row,
            outcome=Fate.PRUNED if measured.given_up else Fate.OK,
            update_seconds=seconds.median,
            update_seconds_low=seconds.low,
            update_seconds_high=seconds.high,
            windows=seconds.values,
            samples_per_second=rank_batch * self.world_size / seconds.median,
            peak_bytes=measured.sample.device_used_bytes,
            joules_per_sample=None if joules is None else joules.median,
            forward_seconds=measured.forward_seconds,
            optimizer_seconds=measured.optimizer_seconds,
            compile_seconds=None if compiled is None else max(0.0, compiled),
        )
        return row, self.incumbent.value(row)

    def _excess(self, candidate: Candidate, row: Measurement) -> float:
        """Give the constraint: above 0 where memory was lacking."""
        if row.outcome in (Fate.OOM, Fate.INFEASIBLE):
            return max(1e-6, self.memory.excess(candidate))
        return min(0.0, (row.peak_bytes or 0) / self.memory.limit_bytes - 1)

    def _remember(self) -> None:
        """Learn from what was measured before, or elsewhere, what fits."""
        for row in self.study.measurements():
            if row.outcome in (Fate.OK, Fate.PRUNED) and row.peak_bytes is not None:
                self.memory.ran(candidate_of(row), row.peak_bytes)
            elif row.outcome is Fate.OOM:
                self.memory.did_not_fit(candidate_of(row))


def _fate(sample: Sample) -> Fate:
    return Fate.FAILED if sample.outcome is Outcome.FAILED else Fate.OOM

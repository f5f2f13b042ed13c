"""The loop: ask for a candidate, measure it, tell; and let it take the incumbent's place only after a duel.

The incumbent is at first the largest micro-batch that fits, as the user wrote the training: the simplest plan. A
challenger wins a duel if it is faster by more than the noise; if neither is, the simpler of the two stays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autoaccum.errors import WorkloadError
from autoaccum.records import Knobs, Outcome, Sample, Trial
from autoaccum.tuning.intervals import Comparison
from autoaccum.tuning.memory import MemoryBook
from autoaccum.tuning.proposals import instead, propose
from autoaccum.tuning.results import Duel, Fate, Measurement, Watcher
from autoaccum.tuning.space import Candidate
from autoaccum.tuning.stopwatch import Bench, Measured, Stopwatch
from autoaccum.tuning.study import Handle, Study

_PRUNE_FROM = 2  # windows that a trial has, before it can be given up
_SHARE_OF_A_TRIAL = 1 / 8  # of all the time, at most
_SHARE_OF_A_DUEL = 1 / 6
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
        self.best: int | None = None  # the incumbent's number
        self._judged: set[int] = set()

    @property
    def seconds(self) -> float:
        """What was spent so far."""
        return self.clock() - self._began

    def tune(self, first: Sequence[Candidate]) -> None:
        """Measure until the budget is spent or nothing is left to try; `best` is the one that won."""
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
        self._judge_others()

    def _at_most(self, share: float) -> float:
        """Give the seconds that something may take: a share of all there are, and no more than are left."""
        return max(_LEAST_SECONDS, min(share * self.limits.seconds, self.limits.seconds - self.seconds))

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
        if row.outcome is Fate.FAILED and candidate.knobs == self.study.space.ground:
            raise WorkloadError(f"{row.message} (micro-batch {row.micro_batch})")
        if row.outcome is Fate.OK:
            self._challenge(row)
        self.watcher.candidate_finished(row, self._row(self.best))
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
            return replace(
                row, outcome=refused[0], message=refused[1], peak_bytes=self.memory.predicted(candidate)
            ), None

        def give_up(measured: Measured) -> bool:
            found = measured.joules_per_sample if self.energy else measured.seconds
            if found is None or found.values < _PRUNE_FROM:
                return False
            return self.study.report(trial, found.low, found.values)

        measured = self._timed(candidate, give_up)
        if not measured.sample.ok or measured.seconds is None:
            self._note(candidate, measured.sample)
            return replace(row, outcome=_fate(measured.sample), message=measured.sample.message), None
        self.memory.ran(candidate, measured.sample.device_used_bytes or 0)
        return self._filled(row, measured, candidate)

    def _timed(self, candidate: Candidate, give_up: Callable[[Measured], bool]) -> Measured:
        seconds = self._at_most(_SHARE_OF_A_TRIAL)
        plan = self.study.space.plans[candidate.micro_batch]
        return self._stopwatch.measure(plan, candidate.knobs, seconds=seconds, give_up=give_up)

    def _refused(self, candidate: Candidate) -> tuple[Fate, str] | None:
        """Give why a candidate is not measured: by the memory model, after one small trial where it has none yet."""
        if not self.memory.known(candidate.knobs) and candidate.micro_batch > 1:
            small = replace(candidate, micro_batch=max(1, candidate.micro_batch // 2))
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
        value = joules.median if self.energy and joules is not None else seconds.median
        return row, value

    def _excess(self, candidate: Candidate, row: Measurement) -> float:
        """Give the constraint: above 0 where memory was lacking."""
        if row.outcome in (Fate.OOM, Fate.INFEASIBLE):
            return max(1e-6, self.memory.excess(candidate))
        return min(0.0, (row.peak_bytes or 0) / self.memory.limit_bytes - 1)

    # ---- the incumbent and its challengers ----

    def _challenge(self, row: Measurement) -> None:
        """Let a trial that ended well take the incumbent's place, if it is the better."""
        self._judged.add(row.trial)
        best = self._row(self.best)
        if best is None:
            self._crown(row)
        elif self._promising(row, best):
            self._fight(best, row)

    def _promising(self, row: Measurement, best: Measurement) -> bool:
        """Whether a duel is worth its time: the challenger looks faster, or is simpler and within the noise."""
        if self.value(row) < self.value(best):
            return True
        within = (row.update_seconds_low or 0.0) <= (best.update_seconds_high or math.inf)
        return within and self._simpler(row, best)

    def _fight(self, best: Measurement, row: Measurement) -> None:
        space = self.study.space
        sides = [(space.plans[each.micro_batch], _candidate(each).knobs) for each in (best, row)]
        seconds = self._at_most(_SHARE_OF_A_DUEL)
        found = self._stopwatch.duel(sides[0], sides[1], seconds=seconds)
        if isinstance(found, Sample):
            return  # one of them does not run any more: what was measured before stands
        wins = self._wins(found, row, best)
        self.study.keep(
            Duel(
                incumbent=best.trial,
                challenger=row.trial,
                ratio=found.ratio,
                ratio_low=found.low,
                ratio_high=found.high,
                rounds=found.rounds,
                winner=row.trial if wins else best.trial,
            )
        )
        if wins:
            self._crown(row)

    def _wins(self, found: Comparison, row: Measurement, best: Measurement) -> bool:
        """Whether the challenger takes the place: faster, or simpler and not slower; uneven sizes must be worth it."""
        even, was_even = (self.study.space.plans[each.micro_batch].even for each in (row, best))
        if even != was_even and self.worth_uneven > 1.0:
            return found.ratio < self.worth_uneven if even else found.faster and found.ratio < 1 / self.worth_uneven
        return found.faster or (not found.slower and self._simpler(row, best))

    def _judge_others(self) -> None:
        """Let the best that others have measured meanwhile challenge ours."""
        rows = [row for row in self.study.measurements() if row.outcome is Fate.OK and row.trial not in self._judged]
        for row in sorted(rows, key=self.value)[:1]:
            self._challenge(row)

    def _remember(self) -> None:
        """Take up where an earlier process left off: what it measured, and what it found to be the best."""
        for row in self.study.measurements():
            candidate = _candidate(row)
            if row.outcome in (Fate.OK, Fate.PRUNED) and row.peak_bytes is not None:
                self.memory.ran(candidate, row.peak_bytes)
            elif row.outcome is Fate.OOM:
                self.memory.did_not_fit(candidate)
        self.best = self.study.best
        if self.best is not None:
            self._judged = {row.trial for row in self.study.measurements() if row.trial <= self.best}

    def _crown(self, row: Measurement) -> None:
        self.best = row.trial
        self.study.crown(row.trial)

    def _simpler(self, row: Measurement, other: Measurement) -> bool:
        key = self.study.space.simplicity
        return key(_candidate(row)) < key(_candidate(other))

    def value(self, row: Measurement) -> float:
        """Give what a trial is judged by."""
        value = row.joules_per_sample if self.energy else row.update_seconds
        return math.inf if value is None else value

    def _row(self, number: int | None) -> Measurement | None:
        return next((row for row in self.study.measurements() if row.trial == number), None)


def _candidate(row: Measurement) -> Candidate:
    return Candidate(micro_batch=row.micro_batch, knobs=Knobs.from_dict(row.options))


def _fate(sample: Sample) -> Fate:
    return Fate.FAILED if sample.outcome is Outcome.FAILED else Fate.OOM

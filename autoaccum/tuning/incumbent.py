"""Who is the best so far. Nobody takes the place without a duel, in which both are measured in turns.

The first incumbent is the largest micro-batch that fits, as the user wrote the training: the simplest plan. A
challenger wins if it is faster by more than the noise; if neither is, the simpler of the two stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from autoaccum.records import Knobs, Sample
from autoaccum.tuning.intervals import Comparison
from autoaccum.tuning.results import Duel, Fate, Measurement
from autoaccum.tuning.space import Candidate
from autoaccum.tuning.stopwatch import Stopwatch
from autoaccum.tuning.study import Study

_NOISE = 1.03  # a simpler challenger that looks no slower than this is worth a duel


class Incumbent:
    """The best trial of a study, as this process sees it."""

    def __init__(self, study: Study, stopwatch: Stopwatch, *, energy: bool, worth_uneven: float) -> None:
        self.number = study.best  # of an earlier process, or of one that works beside us
        self._study = study
        self._stopwatch = stopwatch
        self._energy = energy
        self._worth_uneven = worth_uneven  # how much faster an uneven plan must be than an even one
        rows = study.measurements() if self.number is not None else []
        self._judged = {row.trial for row in rows if row.trial <= (self.number or 0)}

    @property
    def row(self) -> Measurement | None:
        """What was measured of it."""
        return next((row for row in self._study.measurements() if row.trial == self.number), None)

    def value(self, row: Measurement) -> float:
        """Give what a trial is judged by."""
        value = row.joules_per_sample if self._energy else row.update_seconds
        return math.inf if value is None else value

    def challenge(self, row: Measurement, seconds: Callable[[], float]) -> None:
        """Let a trial that ended well take the place, if it is the better; a duel has so many seconds."""
        self._judged.add(row.trial)
        best = self.row
        if best is None:
            self._crown(row)
        elif self._promising(row, best):
            self._fight(best, row, seconds())

    def judge_others(self, seconds: Callable[[], float]) -> None:
        """Let the best that others have measured meanwhile challenge ours."""
        rows = [row for row in self._study.measurements() if row.outcome is Fate.OK and row.trial not in self._judged]
        for row in sorted(rows, key=self.value)[:1]:
            self.challenge(row, seconds)

    def simplify(self, seconds: Callable[[], float]) -> None:
        """Let the simplest of those that were measured to be about as fast challenge it: who won may have come late."""
        best = self.row
        if best is None:
            return
        lost = {duel.challenger for duel in self._study.duels() if duel.winner == duel.incumbent == best.trial}
        rows = [row for row in self._study.measurements() if row.outcome is Fate.OK and self._simpler(row, best)]
        close = [row for row in rows if row.trial not in lost and self.value(row) < self.value(best) * _NOISE]
        if close:
            key = self._study.space.simplicity
            self._fight(best, min(close, key=lambda row: key(candidate_of(row))), seconds())

    def _promising(self, row: Measurement, best: Measurement) -> bool:
        """Whether a duel is worth its time: the challenger might win it, or is simpler and hardly slower."""
        ratio = self.value(row) / self.value(best)
        return ratio < 1.0 - self._stopwatch.worth / 2 or (ratio < _NOISE and self._simpler(row, best))

    def _fight(self, best: Measurement, row: Measurement, seconds: float) -> None:
        plans = self._study.space.plans
        sides = [(plans[each.micro_batch], candidate_of(each).knobs) for each in (best, row)]
        found = self._stopwatch.duel(sides[0], sides[1], seconds=seconds)
        if isinstance(found, Sample) or not found.windows:
            return  # one of them does not run any more, or says nothing: what was measured before stands
        wins = self._wins(found, row, best)
        self._study.keep(
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
        even, was_even = (self._study.space.plans[each.micro_batch].even for each in (row, best))
        if self._worth_uneven > 1.0 and was_even and not even:
            return found.faster and found.ratio < 1 / self._worth_uneven
        if self._worth_uneven > 1.0 and even and not was_even and len(row.options) <= len(best.options):
            return found.decisive and found.ratio < self._worth_uneven
        return found.faster or (found.decisive and not found.slower and self._simpler(row, best))

    def _crown(self, row: Measurement) -> None:
        self.number = row.trial
        self._study.crown(row.trial)

    def _simpler(self, row: Measurement, other: Measurement) -> bool:
        key = self._study.space.simplicity
        return key(candidate_of(row)) < key(candidate_of(other))


def candidate_of(row: Measurement) -> Candidate:
    """Give the candidate that was measured."""
    return Candidate(micro_batch=row.micro_batch, knobs=Knobs.from_dict(row.options))

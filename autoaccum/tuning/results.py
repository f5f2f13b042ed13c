"""What a tuning gives: report.json's `tuning`, the rows of tuning.csv, and what can be watched meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from autoaccum.plans import Plan
from autoaccum.records import Outcome, Record, Sample
from autoaccum.tuning.space import Candidate

JOURNAL = "study.journal"  # in the run folder, where no other storage is asked for
OBJECTIVES = ("throughput", "energy")


class Fate(StrEnum):
    """How a tuning trial ended."""

    OK = "ok"
    PRUNED = "pruned"  # too slow: given up before it was known well
    OOM = "oom"
    INFEASIBLE = "infeasible"  # not run: the memory model says that it does not fit
    FAILED = "failed"


_OUTCOMES = {
    Fate.OK: Outcome.OK,
    Fate.PRUNED: Outcome.OK,
    Fate.OOM: Outcome.OOM,
    Fate.INFEASIBLE: Outcome.OOM,
    Fate.FAILED: Outcome.FAILED,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement(Record):
    """One trial; a row of tuning.csv."""

    trial: int  # Optuna's number
    outcome: Fate
    micro_batch: int
    accumulation_steps: int
    options: dict[str, Any] = field(default_factory=dict)  # the knobs that were turned
    update_seconds: float | None = None  # one whole update: the median of the windows
    update_seconds_low: float | None = None  # and the ends of its interval
    update_seconds_high: float | None = None
    windows: int = 0
    samples_per_second: float | None = None
    peak_bytes: int | None = None  # for one that was not run: predicted
    joules_per_sample: float | None = None
    forward_seconds: float | None = None  # the forward passes' part of update_seconds
    optimizer_seconds: float | None = None  # the optimizer's part of it
    compile_seconds: float | None = None  # what the first update took more, once, where torch.compile is on
    message: str = ""
    process: str = ""  # who measured it, where several work on one study

    def as_sample(self) -> Sample:
        """Give it as models are fitted on it."""
        return Sample(
            trial=self.trial,
            phase="tune",
            micro_batch=self.micro_batch,
            accumulation_steps=self.accumulation_steps,
            outcome=_OUTCOMES[self.outcome],
            device_used_bytes=self.peak_bytes,
            step_seconds=self.update_seconds,
            optimizer_seconds=self.optimizer_seconds,
            options=self.options,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Duel(Record):
    """Two trials measured in turns, before one of them is called the better."""

    incumbent: int
    challenger: int
    ratio: float  # the challenger's time (or energy) over the incumbent's
    ratio_low: float
    ratio_high: float
    rounds: int
    winner: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning(Record):
    """All of it."""

    objective: str
    study: str  # its name in the storage
    storage: str  # "" where it was kept in memory only
    seconds: float
    allowed: tuple[str, ...]  # the knobs that could be turned
    unsupported: dict[str, str]  # those that were asked for and could not be, each with the reason
    best: int | None  # the trial that the answer comes from
    largest: int | None  # the trial of the largest micro-batch that fits, without knobs: the usual choice
    trials: tuple[Measurement, ...]
    duels: tuple[Duel, ...] = ()
    seconds_allowed: float = 0.0

    def credited(self, plan: Plan) -> Tuning:
        """Give the tuning with the plan's trial as its best: another one may not have run in a fresh process."""
        trials = (t.trial for t in self.trials if (t.micro_batch, t.options) == (plan.micro_batch, plan.options))
        return replace(self, best=next(trials, None))

    def trial(self, number: int | None) -> Measurement | None:
        """Give the trial with this number."""
        return next((each for each in self.trials if each.trial == number), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What came of it: plans that ran, fastest first, then those that are only predicted."""

    measured: tuple[Plan, ...]
    others: tuple[Plan, ...]


class Watcher(Protocol):
    """Somebody who wants to see the tuning."""

    def tuning_started(self, trials: int, seconds: float) -> None:
        """It begins, with so much to spend at most."""

    def candidate_started(self, candidate: Candidate, done: int) -> None:
        """A candidate is being measured; so many are behind us."""

    def candidate_finished(self, row: Measurement, best: Measurement | None) -> None:
        """A candidate was measured; this is the best so far."""


def shown(storage: str | None) -> str | None:
    """Give a storage's name as it may be shown: a database's URL without its user and password."""
    scheme, colon, rest = (storage or "").partition("://")
    _, at, place = rest.partition("/")[0].rpartition("@")
    return f"{scheme}://...@{place}{rest[len(rest.partition('/')[0]) :]}" if colon and at else storage

"""The study: candidates in, measurements out. All that is known of a trial is kept in it.

So whoever opens it later, or beside us, goes on from there: trials that ended are not repeated, those that run
elsewhere are not run here too, and those that were cut off are run again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from autoaccum.tuning.proposals import Seen
from autoaccum.tuning.results import Duel, Fate, Measurement
from autoaccum.tuning.sampler import ProposalsThenTpe, SlowerThanBest
from autoaccum.tuning.space import Candidate, Space

Handle = Trial  # what `ask` gives and `tell` takes; nobody else looks into it
Propose = Callable[[Sequence[Seen]], Candidate | None]
Instead = Callable[[Candidate, Sequence[Seen]], Candidate | None]

_ROW = "autoaccum"  # the trial's row of tuning.csv, as a user attribute of the trial
_OWNER = "taken"  # on which host, by which process, and when it was last heard of
_BEST, _DUELS = "best", "duels"  # attributes of the study
_STALE_SECONDS = 1800.0  # a trial that nobody was heard of for so long was left behind
_HEARD_SECONDS = 60.0  # from one sign of life to the next, at least
_RACES = 20  # trials in a row that another process may snatch away


class Study:
    """One study, in this process and in others."""

    def __init__(self, storage: BaseStorage, name: str, space: Space, *, seed: int) -> None:
        self.name = name
        self.space = space
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._heard = 0.0
        self._distributions = _distributions(space)
        self._sampler = ProposalsThenTpe(space, self._distributions, seed)
        self._study = optuna.create_study(
            study_name=name,
            storage=storage,
            sampler=self._sampler,
            pruner=SlowerThanBest(),
            direction="minimize",
            load_if_exists=True,
        )

    @property
    def process(self) -> str:
        """This process, as the trials name it."""
        return f"{self._host}:{self._pid}"

    def enqueue(self, candidates: Sequence[Candidate]) -> None:
        """Have these measured first."""
        for candidate in candidates:
            self._study.enqueue_trial(self.space.params(candidate), skip_if_exists=True)

    def take_up(self, *, alone: bool) -> None:
        """Queue again what was cut off; `alone`: nobody else can be at work, so whatever runs was."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if alone or self._cut_off(trial):
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
                params = trial.system_attrs.get("fixed_params", trial.params)
                if set(params) == set(self._distributions):
                    self._study.enqueue_trial(dict(params))

    def ask(self, propose: Propose, instead: Instead) -> tuple[Trial, Candidate] | None:
        """Give the next trial: one that waits, else a proposal, else what the sampler suggests.

        `instead` gives something new in place of a suggestion that is not; None where nothing is left.
        """
        self._sampler.propose = lambda: propose(self.seen())
        self._sampler.instead = lambda suggestion: instead(suggestion, self.seen())
        for _ in range(_RACES):
            trial = self._study.ask(self._distributions)
            if self._sampler.exhausted:
                self._study.tell(trial, state=TrialState.FAIL)
                return None
            self._say_alive(trial)
            candidate = self.space.candidate(trial.params)
            if not any(each.candidate == candidate for each in self.seen(before=trial.number)):
                return trial, candidate
            self._study.tell(trial, state=TrialState.FAIL)  # somebody else was faster
        return None

    def report(self, trial: Trial, value: float, step: int) -> bool:
        """Note what a trial looks like so far; give whether it should be pruned."""
        with suppress(UpdateFinishedTrialError):  # taken for dead by others: it is measured to its end all the same
            if time.time() - self._heard > _HEARD_SECONDS:
                self._say_alive(trial)
            trial.report(value, step)
        return trial.should_prune()

    def tell(self, trial: Trial, row: Measurement, value: float | None, excess: float) -> None:
        """Keep how a trial ended. A lack of memory is a violated constraint, by `excess`."""
        with suppress(UpdateFinishedTrialError):  # taken for dead by others, who measure it again
            trial.set_user_attr(_ROW, asdict(row))
            if row.outcome is not Fate.FAILED:
                trial.set_constraint("memory", excess)
            if row.outcome is Fate.OK and value is not None:
                self._study.tell(trial, value)
            else:
                failed = row.outcome is Fate.FAILED
                self._study.tell(trial, state=TrialState.FAIL if failed else TrialState.PRUNED)

    def give_back(self, trial: Trial) -> None:
        """Let somebody else measure a trial that was cut off, or us when we go on."""
        before = self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
        if before.state is TrialState.FAIL and _row(before) is None:
            self._study.enqueue_trial(dict(trial.params))

    def seen(self, before: int | None = None) -> list[Seen]:
        """Give what was measured, and what is being measured."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            params = trial.params or trial.system_attrs.get("fixed_params", {})
            running = trial.state is TrialState.RUNNING and not self._cut_off(trial)
            row = _row(trial)
            if set(params) < set(self._distributions) or (row is None and not running):
                continue
            if before is None or trial.number < before:
                fate = None if row is None else row.outcome
                found.append(Seen(candidate=self.space.candidate(params), value=_value(trial, fate), fate=fate))
        return found

    def measurements(self) -> list[Measurement]:
        """Give the rows of all trials that ended, whoever ran them."""
        rows = [_row(trial) for trial in self._study.get_trials(deepcopy=False)]
        return [row for row in rows if row is not None]

    def running(self) -> int:
        """Give how many trials are being measured, here and elsewhere."""
        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return sum(not self._cut_off(trial) for trial in running)

    @property
    def best(self) -> int | None:
        """The trial that won the last duel, of whichever process."""
        best: int | None = self._study.user_attrs.get(_BEST)
        return best

    def crown(self, number: int) -> None:
        """Keep which trial is the best."""
        self._study.set_user_attr(_BEST, number)

    def duels(self) -> list[Duel]:
        """Give the duels of all processes."""
        attributes = self._study.user_attrs
        kept = [attributes[key] for key in sorted(attributes) if key.startswith(_DUELS)]
        return [Duel.from_dict(duel) for duels in kept for duel in duels]

    def keep(self, duel: Duel) -> None:
        """Keep a duel; each process has a list of its own, for the storage knows no appending."""
        key = f"{_DUELS} {self.process}"
        self._study.set_user_attr(key, [*self._study.user_attrs.get(key, []), asdict(duel)])

    def _say_alive(self, trial: Trial) -> None:
        self._heard = time.time()
        trial.set_user_attr(_OWNER, [self._host, self._pid, self._heard])

    def _cut_off(self, trial: FrozenTrial) -> bool:
        """Whether whoever took this trial is gone: on this host it can be seen, elsewhere only waited for."""
        host, pid, heard = trial.user_attrs.get(_OWNER, ("", 0, None))
        if heard is None:  # just taken, or killed in that moment
            heard = trial.datetime_start.timestamp() if trial.datetime_start is not None else time.time()
        if host == self._host and pid != self._pid:
            return not _alive(int(pid))
        return time.time() - float(heard) > _STALE_SECONDS


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    """Give what Optuna chooses from: sizes on a logarithmic scale, where neighbours are alike, and knobs."""
    knobs = {name: CategoricalDistribution(list(values)) for name, values in space.values.items()}
    return {"micro_batch": IntDistribution(space.sizes[0], space.sizes[-1], log=True), **knobs}


def _row(trial: FrozenTrial) -> Measurement | None:
    row: Mapping[str, Any] | None = trial.user_attrs.get(_ROW)
    return None if row is None else Measurement.from_dict({**row, "trial": trial.number})


def _value(trial: FrozenTrial, fate: Fate | None) -> float | None:
    """Give what a trial takes; one that was pruned takes at least the lower end of its interval."""
    if fate is Fate.OK:
        return trial.value
    return trial.intermediate_values[trial.last_step] if fate is Fate.PRUNED and trial.last_step is not None else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

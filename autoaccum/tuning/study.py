"""Optuna's part: where the study is kept, who samples and who prunes. All that is known of a trial is in the study.

So whoever opens it later, or beside us, goes on from there: trials that ended are not repeated, those that run
elsewhere are not run here too, and those that were cut off are run again.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from autoaccum.errors import UsageError
from autoaccum.tuning.proposals import Seen
from autoaccum.tuning.results import Duel, Fate, Measurement
from autoaccum.tuning.space import Candidate, Space

JOURNAL = "study.journal"  # in the run folder, where no other storage is asked for
_ROW = "autoaccum"  # the trial's row of tuning.csv, as a user attribute of the trial
_OWNER = "taken"  # by which process, and when
_BEST, _DUELS = "best", "duels"  # attributes of the study
_STALE_SECONDS = 1800.0  # a trial that has been running for so long was left behind
_HOPELESS = 1.05  # a trial whose interval begins so far above the best is pruned,
_AT_ONCE = 1.5  # and after fewer windows only one that is as slow as this
_SOME_WINDOWS = 4
Handle = Trial  # what `ask` gives and `tell` takes; nobody else looks into it
Propose = Callable[[Sequence[Seen]], Candidate | None]
Instead = Callable[[Candidate, Sequence[Seen]], Candidate | None]
_OPENINGS = 4  # tries to open a database
_RACES = 20  # trials in a row that another process may snatch away


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from telling of every trial; the user's own studies are told of as before."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def open_storage(storage: str | None, folder: Path | None) -> tuple[BaseStorage, str]:
    """Give the storage that `storage` names, and its name for the report.

    It is a database's URL or a journal's path; by default a journal in the run folder, without one in memory.
    """
    if storage is None and folder is None:
        return InMemoryStorage(), ""
    if storage is not None and "://" in storage:
        return _database(storage), _without_password(storage)
    path = Path(storage) if storage is not None else Path(os.fspath(folder or ".")) / JOURNAL
    if not path.parent.is_dir():
        raise UsageError(f"--storage {path}: there is no folder {path.parent}")
    try:
        journal = JournalStorage(JournalFileBackend(str(path)))
        journal.get_all_studies()
    except OSError as error:
        raise UsageError(f"--storage {path} cannot be opened: {error.strerror}") from error
    except Exception as error:  # whatever is in the file
        raise UsageError(
            f"--storage {path} is not a journal of Optuna: give a database's URL, or another path"
        ) from error
    return journal, JOURNAL if storage is None else storage


def _database(url: str) -> BaseStorage:
    for attempt in range(_OPENINGS):
        try:
            return optuna.storages.get_storage(url)
        except Exception as error:  # whatever a database's driver raises; the URL is the user's
            # Several that start at once all make the tables of a new database, and all but one fail.
            if attempt + 1 < _OPENINGS:
                time.sleep(0.3)
                continue
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UsageError(f"--storage {_without_password(url)} cannot be opened: {reason}") from error
    raise AssertionError("unreachable")


def _without_password(url: str) -> str:
    """Give a database's URL as it may be shown."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('://')[0]}://...@{tail}" if at else url


class Study:
    """One study: candidates in, measurements out, in this process and in others."""

    def __init__(self, storage: BaseStorage, name: str, space: Space, *, seed: int) -> None:
        self.name = name
        self.space = space
        self.process = f"{socket.gethostname()}:{os.getpid()}"
        self._distributions: dict[str, BaseDistribution] = {
            key: CategoricalDistribution(list(choices)) for key, choices in space.choices.items()
        }
        self._sampler = _Sampler(space, self._distributions, seed)
        self._study = optuna.create_study(
            study_name=name,
            storage=storage,
            sampler=self._sampler,
            pruner=_Pruner(),
            direction="minimize",
            load_if_exists=True,
        )

    def enqueue(self, candidates: Sequence[Candidate]) -> None:
        """Have these measured first."""
        for candidate in candidates:
            self._study.enqueue_trial(self.space.params(candidate), skip_if_exists=True)

    def take_up(self, *, alone: bool) -> None:
        """Queue again what was cut off; `alone`: nobody else can be at work, so whatever runs was."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if alone or _stale(trial):
                self._study.tell(trial.number, state=TrialState.FAIL)
                params = trial.system_attrs.get("fixed_params", trial.params)
                if params:
                    self._study.enqueue_trial(dict(params))

    def ask(self, propose: Propose, instead: Instead) -> tuple[Trial, Candidate] | None:
        """Give the next trial: one that waits, else a proposal, else what the sampler suggests.

        `instead` gives something new in place of a suggestion that is not; None where nothing is left.
        """
        self._sampler.propose = lambda: propose(self.seen())
        self._sampler.instead = lambda suggestion: instead(suggestion, self.seen())
        for _ in range(_RACES):
            trial = self._study.ask(self._distributions)
            trial.set_user_attr(_OWNER, [self.process, time.time()])
            candidate = self.space.candidate(trial.params)
            if not any(each.candidate == candidate for each in self.seen(before=trial.number)):
                return trial, candidate
            self._study.tell(trial, state=TrialState.FAIL)  # measured already, or somebody else was faster
            if self._sampler.exhausted:
                return None
        return None

    def report(self, trial: Trial, value: float, step: int) -> bool:
        """Note what a trial looks like so far; give whether it should be pruned."""
        trial.report(value, step)
        return trial.should_prune()

    def tell(self, trial: Trial, row: Measurement, value: float | None, excess: float) -> None:
        """Keep how a trial ended. A lack of memory is a violated constraint, by `excess`."""
        trial.set_user_attr(_ROW, asdict(row))
        if row.outcome in (Fate.OK, Fate.PRUNED, Fate.OOM, Fate.INFEASIBLE):
            trial.set_constraint("memory", excess)
        if row.outcome is Fate.OK and value is not None:
            self._study.tell(trial, value)
        elif row.outcome is Fate.FAILED:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)

    def give_back(self, trial: Trial) -> None:
        """Let somebody else measure a trial that was cut off, or us when we go on."""
        self._study.tell(trial, state=TrialState.FAIL)
        self._study.enqueue_trial(dict(trial.params))

    def seen(self, before: int | None = None) -> list[Seen]:
        """Give what was measured, and what is being measured."""
        found = []
        for trial in self._study.get_trials(deepcopy=False):
            if before is not None and trial.number >= before:
                continue
            params = trial.params or trial.system_attrs.get("fixed_params", {})
            running = trial.state is TrialState.RUNNING and not _stale(trial)
            row = _row(trial)
            if set(params) < set(self.space.choices) or (row is None and not running):
                continue
            fate = None if row is None else row.outcome
            value = trial.value if fate is Fate.OK else _at_least(trial)
            found.append(Seen(candidate=self.space.candidate(params), value=value, fate=fate))
        return found

    def measurements(self) -> list[Measurement]:
        """Give the rows of all trials that ended, whoever ran them."""
        rows = [_row(trial) for trial in self._study.get_trials(deepcopy=False)]
        return [row for row in rows if row is not None]

    def running(self) -> int:
        """Give how many trials are being measured by others."""
        states = (TrialState.RUNNING,)
        return sum(not _stale(trial) for trial in self._study.get_trials(deepcopy=False, states=states))

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


class _Sampler(BaseSampler):
    """Takes proposals first, and has TPE suggest the rest."""

    def __init__(self, space: Space, distributions: dict[str, BaseDistribution], seed: int) -> None:
        self.propose: Callable[[], Candidate | None] = lambda: None
        self.instead: Callable[[Candidate], Candidate | None] = lambda suggestion: suggestion
        self.exhausted = False
        self._space = space
        self._all = distributions
        self._distributions = {name: each for name, each in distributions.items() if not each.single()}
        self._rest = TPESampler(seed=seed % 2**32, n_startup_trials=5)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Give what is sampled together: everything."""
        return self._distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Give the proposal, else TPE's suggestion, or what is new and most like it."""
        found = self.propose()
        if found is None:
            together = self._rest.sample_relative(study, trial, self._rest.infer_relative_search_space(study, trial))
            params = {
                name: together[name] if name in together else self._rest.sample_independent(study, trial, name, each)
                for name, each in self._all.items()
            }
            suggestion = self._space.candidate(params)
            found = self.instead(suggestion)
            self.exhausted = found is None
            found = found or suggestion
        return {name: value for name, value in self._space.params(found).items() if name in self._distributions}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Give what TPE suggests for one parameter alone."""
        return self._rest.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Start from another seed."""
        self._rest.reseed_rng()


class _Pruner(BasePruner):
    """Gives a trial up when even the lower end of its interval is clearly above the best."""

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Compare what was reported last with the best value."""
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        best = min((each.value for each in complete if each.value is not None), default=math.inf)
        step = trial.last_step
        if step is None:
            return False
        return trial.intermediate_values[step] > best * (_HOPELESS if step >= _SOME_WINDOWS else _AT_ONCE)


def _row(trial: FrozenTrial) -> Measurement | None:
    row: Mapping[str, Any] | None = trial.user_attrs.get(_ROW)
    return None if row is None else Measurement.from_dict({**row, "trial": trial.number})


def _at_least(trial: FrozenTrial) -> float | None:
    """Give what a pruned trial takes at least: the last lower end of its interval."""
    step = trial.last_step
    return None if step is None else trial.intermediate_values[step]


def _stale(trial: FrozenTrial) -> bool:
    # Optuna's own time is local, and others may live in another zone.
    _, started = trial.user_attrs.get(_OWNER, ("", math.inf))
    return time.time() - float(started) > _STALE_SECONDS

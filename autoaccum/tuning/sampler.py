"""Who chooses and who gives up, in Optuna's terms: proposals, then TPE; and a pruner of what is clearly slower."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from autoaccum.tuning.space import Candidate, Space

_HOPELESS = 1.05  # a trial whose interval begins so far above the best is pruned,
_AT_ONCE = 1.5  # and after fewer windows only one that is as slow as this
_SOME_WINDOWS = 4


class ProposalsThenTpe(BaseSampler):
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
            suggestion = self._space.candidate(params)  # of a size that may lie between those there are
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


class SlowerThanBest(BasePruner):
    """Gives a trial up when even the lower end of its interval is clearly above the best."""

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Compare what was reported last with the best value."""
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        best = min((each.value for each in complete if each.value is not None), default=math.inf)
        step = trial.last_step
        if step is None:
            return False
        return trial.intermediate_values[step] > best * (_HOPELESS if step >= _SOME_WINDOWS else _AT_ONCE)

"""Those who see a run go by: the terminal, a test, nobody."""

from __future__ import annotations

from typing import Protocol

from autoaccum import lab
from autoaccum.records import Budget, DeviceInfo, Sample, Trial
from autoaccum.tuning import results
from autoaccum.tuning.results import Measurement
from autoaccum.tuning.space import Candidate


class Watcher(lab.Watcher, results.Watcher, Protocol):
    """Somebody who wants to see the run: the terminal, a test."""


class Silent:
    """A watcher that looks away."""

    def opened(self, device: DeviceInfo, budget: Budget) -> None:
        """Ignore it."""

    def trial_started(self, trial: Trial) -> None:
        """Ignore it."""

    def trial_finished(self, sample: Sample) -> None:
        """Ignore it."""

    def tuning_started(self, trials: int, seconds: float) -> None:
        """Ignore it."""

    def candidate_started(self, candidate: Candidate, done: int) -> None:
        """Ignore it."""

    def candidate_finished(self, row: Measurement, best: Measurement | None) -> None:
        """Ignore it."""

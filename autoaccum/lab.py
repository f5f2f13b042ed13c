"""Where trials are run: a Sample for every Trial.

The lab of a file has one worker after another. Importing torch takes seconds, so a worker is kept until it dies, or
until a fresh one is asked for. The lab of live objects is in live/planner.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from autoaccum.anatomy.record import Anatomy
from autoaccum.errors import DeviceError, WorkloadError
from autoaccum.isolate import Answer, Ready, Worker, WorkerSpec
from autoaccum.knobs.names import environment
from autoaccum.pipes import Echo
from autoaccum.records import Budget, DeviceInfo, ModelInfo, Outcome, Sample, Trial


class Watcher(Protocol):
    """Somebody who wants to see the run: the terminal, a test."""

    def opened(self, device: DeviceInfo, budget: Budget) -> None:
        """The device is known, trials begin."""

    def trial_started(self, trial: Trial) -> None:
        """A trial begins."""

    def trial_finished(self, sample: Sample) -> None:
        """A trial ended."""


class Lab(Protocol):
    """What search and confirmation need: trials, and somewhere to keep what they showed."""

    samples: list[Sample]
    model: ModelInfo | None

    @property
    def gradient_bytes(self) -> int:
        """Give the bytes of all gradients, as far as they are known."""

    def run(self, trial: Trial) -> Sample:
        """Run one trial; raise if the user's code did."""

    def as_in_training(self, limit_bytes: int) -> None:
        """Have the next trials run as the user's training will, under this limit."""

    def couplings(self, largest_ok: int) -> Sequence[str]:
        """Give the warnings of samples that see each other, from a look at no more rows than ran."""

    def warn(self, *warnings: str) -> None:
        """Keep what the user must be told, once."""


class WorkerLab:
    """Runs trials in workers and keeps what they showed: samples, warnings, and facts of the model."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        timeout_seconds: float,
        watcher: Watcher,
        echo: Echo | None = None,
        keep: Callable[[], None] = lambda: None,  # called after each trial that is kept
    ) -> None:
        self.samples: list[Sample] = []
        self.warnings: list[str] = []
        self.model: ModelInfo | None = None
        self._spec = spec
        self._timeout_seconds = timeout_seconds
        self._watcher = watcher
        self._echo = echo
        self._keep = keep
        self._before: tuple[DeviceInfo, Budget] | None = None
        self._workers: dict[str, Worker] = {}
        self.ready: Ready | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.kill() if error is not None else worker.close()

    def open(self) -> tuple[DeviceInfo, Budget]:
        """Start the first worker, which decides on the budget for all, unless that was done before."""
        ready = self.worker().ready
        if self._before is not None:
            device, budget = self._before
            if (ready.device.kind, ready.device.name) != (device.kind, device.name):
                raise DeviceError(f"that run was on {device.name} and this is {ready.device.name}: probe again here")
            ready = replace(ready, budget=budget)
        self.ready = ready
        assert ready.budget is not None  # noqa: S101  (for the type checker)
        self._spec = replace(self._spec, limit_bytes=ready.budget.limit_bytes)
        self._watcher.opened(ready.device, ready.budget)
        return ready.device, ready.budget

    def take_up(self, device: DeviceInfo, budget: Budget, samples: Sequence[Sample]) -> None:
        """Go on from what an earlier run has seen, on the same device under the same budget."""
        self._before = device, budget
        self._spec = replace(self._spec, limit_bytes=budget.limit_bytes)
        self.samples.extend(samples)
        for sample in samples:
            self._warn_of_loss(sample)

    @property
    def gradient_bytes(self) -> int:
        """Give the bytes of all gradients; 0 before the first trial."""
        return 0 if self.model is None else self.model.gradient_bytes

    def run(self, trial: Trial) -> Sample:
        """Run one trial in the present worker, or in a new one if that has died; raise if the workload raised."""
        self._watcher.trial_started(trial)
        if self.ready is not None and self.ready.device.repeatable:
            trial = replace(trial, anew=True)  # so that it shows what it would in training
        sample = self.time(trial, number=len(self.samples) + 1).sample
        self.samples.append(sample)
        self._warn_of_loss(sample)
        self._keep()
        self._watcher.trial_finished(sample)
        if sample.outcome is Outcome.FAILED:
            raise WorkloadError(f"{sample.message} (micro-batch {sample.micro_batch})", details=sample.details)
        return sample

    def time(self, trial: Trial, seat: str = "", number: int = 0) -> Answer:
        """Run one trial for the time of its windows; what it shows is not kept among the samples.

        Each seat has a worker of its own, so that two trials can take turns without disturbing each other.
        """
        smaller_ran = any(s.ok and s.micro_batch < trial.micro_batch for s in self.samples)
        worker = self._worker_for(trial, seat)
        answer = worker.run(number, trial, smaller_ran=smaller_ran)
        self._learn(answer.model)
        self.warn(*answer.warnings)
        return replace(answer, sample=replace(answer.sample, fresh=worker.trials == 1))

    def _warn_of_loss(self, sample: Sample) -> None:
        if sample.outcome in (Outcome.KILLED, Outcome.TIMED_OUT):
            self.warn(f"micro-batch {sample.micro_batch} counts as too large: {sample.message}")

    def _learn(self, model: ModelInfo | None) -> None:
        """Keep the facts of the model; a trial that failed has no optimizer's state, which another may have shown."""
        if model is not None:
            before = None if self.model is None else self.model.optimizer_state_bytes
            self.model = replace(model, optimizer_state_bytes=model.optimizer_state_bytes or before)

    def unsupported(self) -> dict[str, str] | None:
        """Have the present worker say which knobs cannot be turned, and why; None if it is lost over that."""
        return self.worker().unsupported()

    def as_in_training(self, limit_bytes: int) -> None:
        """Have the next trials run in processes set up as the user's training will be, under this limit."""
        self._spec = replace(self._spec, exact_meter=False, limit_bytes=limit_bytes)
        self.leave("")

    def couplings(self, largest_ok: int) -> Sequence[str]:
        """Have the present worker look."""
        return self.worker().couplings(largest_ok)

    def dissect(self, trial: Trial, snapshot: Path | None) -> Anatomy | None:
        """Have the present worker say where the memory of a trial goes; what goes wrong there is a warning."""
        try:
            return self._worker_for(trial).dissect(trial, snapshot)
        except Exception as error:  # the plan stands, whatever it is
            self.warn(f"where the memory goes is not known: {error}")
            return None

    def leave(self, seat: str) -> None:
        """End the worker of a seat, if it has one."""
        worker = self._workers.get(seat)
        if worker is not None:
            try:
                worker.close()
            finally:
                worker.kill()  # where a Ctrl-C cut the waiting short
                del self._workers[seat]

    def _worker_for(self, trial: Trial, seat: str = "") -> Worker:
        """Give the seat's worker, or a new one where the trial wants that, or other variables."""
        variables = environment(trial.knobs, os.environ)
        if trial.fresh or (seat in self._workers and variables != self._workers[seat].variables):
            self.leave(seat)
        self._spec = replace(self._spec, variables=variables)
        return self.worker(seat)

    def worker(self, seat: str = "") -> Worker:
        """Give the worker of a seat, a new one where there is none that lives."""
        worker = self._workers.get(seat)
        if worker is None or not worker.alive:
            worker = Worker(self._spec, timeout_seconds=self._timeout_seconds, echo=self._echo)
            self._workers[seat] = worker
            self.warn(*worker.ready.warnings)
        return worker

    def warn(self, *warnings: str) -> None:
        """Keep what the report must say, once."""
        self.warnings.extend(warning for warning in warnings if warning not in self.warnings)

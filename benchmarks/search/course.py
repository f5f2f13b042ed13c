"""What every peer is given: the same workload, three optimizer steps for a trial, and a book of what was tried."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from autoaccum.batch import to_device
from autoaccum.oom import is_oom
from autoaccum.workload import Workload, load
from benchmarks.search.forks import Row

STEPS = 3


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One size that a peer tried."""

    size: int
    steps: int = 0  # that were made to their end
    oom: bool = False

    @property
    def ran(self) -> bool:
        """Whether it was run to its end."""
        return self.steps >= STEPS


@dataclass(kw_only=True, slots=True)
class Course:
    """A workload on a device, and the sizes that were tried."""

    workload: Workload
    device: torch.device
    attempts: list[Attempt] = field(default_factory=list)

    @classmethod
    def of(cls, spec: str, device: torch.device) -> Course:
        """Load the workload of a file."""
        return cls(workload=load(spec), device=device)

    def begin(self, size: int) -> Attempt:
        """Note that a size is tried."""
        attempt = Attempt(size=size)
        self.attempts.append(attempt)
        return attempt

    def train(self, size: int) -> int:
        """Build the model, make three optimizer steps and give the size; raise what they raise."""
        attempt = self.begin(size)
        try:
            model = self.workload.build_model().to(self.device)
            optimizer = self.workload.build_optimizer(model)
            for _ in range(STEPS):
                batch = to_device(self.workload.make_batch(size), self.device)
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(self.workload.loss(model, batch))
                optimizer.step()
                attempt.steps += 1
        except BaseException as error:
            attempt.oom = is_oom(error)
            raise
        return size

    def summary(self, found: int | None) -> Row:
        """Give the counts, and whether what was found ran."""
        return {
            "size": found,
            "trials": len(self.attempts),
            "ooms": sum(attempt.oom for attempt in self.attempts),
            "optimizer_steps": sum(attempt.steps for attempt in self.attempts),
            "samples": sum(attempt.size * attempt.steps for attempt in self.attempts),
            "ran": any(attempt.ran and attempt.size == found for attempt in self.attempts),
            "tried": [f"{a.size} {'ok' if a.ran else 'oom' if a.oom else 'failed'}" for a in self.attempts],
        }

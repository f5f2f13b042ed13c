"""An imagined device on which memory is a known function of the size, and a lab that runs trials on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoaccum.records import DeviceInfo, ModelInfo, Outcome, Sample, Trial
from autoaccum.search import Goal, Strategy, fewest_trials

DEVICE = DeviceInfo(
    kind="cuda", name="Imagined", uuid="", total_bytes=10**12, free_bytes=10**12, overhead_bytes=0, repeatable=True
)
MOST_TRIALS = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Imagined:
    """device(m) = overhead + max(resident + step, kept + each x m x (1 + slack)): gradients are kept if they stay."""

    limit_bytes: int
    overhead: int = 50
    resident: int = 100  # gradients included
    gradients: int = 10
    each: int = 7
    step: int = 0  # in the optimizer's step, beyond what is resident
    slack: Callable[[int], float] = lambda size: 0.0  # what the allocator cannot do without, as a share
    loose: float = 0.0  # what it takes besides where it may

    def live(self, size: int, steps: int) -> int:
        """Give the live bytes outside of the optimizer's step."""
        return self.kept(steps) + self.each * size

    def kept(self, steps: int) -> int:
        """Give what is there whatever the size."""
        return self.resident - (self.gradients if steps == 1 else 0)

    def needs(self, size: int, steps: int) -> int:
        """Give the least that a trial runs with, the overhead included."""
        held = self.kept(steps) + round(self.each * size * (1 + self.slack(size)))
        return self.overhead + max(self.resident + self.step, held)

    def fits(self, size: int, steps: int) -> bool:
        """Whether a trial runs."""
        return self.needs(size, steps) <= self.limit_bytes

    def run(self, trial: Trial, number: int) -> Sample:
        """Give what a trial shows."""
        size, steps = trial.micro_batch, trial.accumulation_steps
        least = self.needs(size, steps)
        taken = min(max(least, round(least + self.each * size * self.loose)), max(least, self.limit_bytes))
        return Sample(
            trial=number,
            phase=trial.phase,
            micro_batch=size,
            accumulation_steps=steps,
            outcome=Outcome.OK if least <= self.limit_bytes else Outcome.OOM,
            peak_allocated_bytes=max(self.live(size, steps), self.resident + self.step),
            peak_reserved_bytes=taken - self.overhead,
            device_used_bytes=taken,
            alloc_retries=0,
            resident_bytes=self.kept(steps),
            computing_bytes=self.live(size, steps),
            held_bytes=self.kept(steps) + round(self.each * size * (1 + self.slack(size))),
            step_bytes=self.resident + self.step,
            fresh=trial.fresh,
        )


def search(
    device: Imagined, goal: Goal, outcome: Callable[[Trial], Outcome] | None = None, strategy: Strategy = fewest_trials
) -> list[Sample]:
    """Run a strategy to its end; `outcome` has another say in what runs."""
    samples: list[Sample] = []
    while (trial := strategy(samples, goal)) is not None:
        sample = device.run(trial, len(samples) + 1)
        if outcome is not None and outcome(trial) is not Outcome.OK:
            sample = Sample(
                trial=sample.trial,
                phase=sample.phase,
                micro_batch=sample.micro_batch,
                accumulation_steps=sample.accumulation_steps,
                outcome=outcome(trial),
            )
        samples.append(sample)
        assert len(samples) < MOST_TRIALS
    return samples


@dataclass(kw_only=True, slots=True)
class ImaginedLab:
    """What planning.py needs of a lab; `refuses` are trials that run out of memory whatever they need."""

    device: Imagined
    refuses: Callable[[Trial], bool] = lambda trial: False
    samples: list[Sample] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def model(self) -> ModelInfo:
        """The facts of a model with these gradients."""
        return ModelInfo(name="x", parameters=1, parameter_bytes=1, gradient_bytes=self.device.gradients)

    @property
    def gradient_bytes(self) -> int:
        """Give the bytes of all gradients."""
        return self.device.gradients

    def run(self, trial: Trial) -> Sample:
        """Run a trial; sizes that differ need what the largest does."""
        assert len(self.samples) < MOST_TRIALS
        sample = self.device.run(trial, len(self.samples) + 1)
        if self.refuses(trial):
            sample = Sample(
                trial=sample.trial,
                phase=sample.phase,
                micro_batch=sample.micro_batch,
                accumulation_steps=sample.accumulation_steps,
                outcome=Outcome.OOM,
            )
        self.samples.append(sample)
        return sample

    def as_in_training(self, limit_bytes: int) -> None:
        """Ignore it."""

    def couplings(self, largest_ok: int) -> Sequence[str]:
        """Give none."""
        return ()

    def warn(self, *warnings: str) -> None:
        """Keep them."""
        self.warnings.extend(warnings)

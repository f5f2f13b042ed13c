"""What a saved run knows of training with its plan's knobs, memory and time: for answers without a trial. Pure.

Nothing here may say that a size fits which does not, so each doubt counts against it: a failure outweighs a
prediction, a trial as in training outweighs one of the search, and a model does not outlive a failure that it denies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from autoaccum.confirm import training_limit
from autoaccum.fit import TimeModel, fit_memory, fit_time
from autoaccum.knobs.names import of_options
from autoaccum.records import Budget, DeviceInfo, MemoryModel, Outcome, Sample
from autoaccum.report.record import Report
from autoaccum.tuning.memory import kind_of
from autoaccum.tuning.results import Fate

_UNLIKE = 0.10  # of a peak with knobs that the search did not have: what the model may be off at other sizes
_FARTHEST = 1.5  # times what is predicted: what may need more than that is not known at all
_RESTLESS = 0.15  # by what share runs differ, where they do (benchmarks/plan_holds.py)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A size that did not fit."""

    size: int
    alone: bool  # without accumulation
    limit_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What ran, what did not, and the models for the rest."""

    options: dict[str, Any]
    samples: tuple[Sample, ...]  # what ran as it does in training; of one size, what held the most comes last
    failures: tuple[Failure, ...]
    memory: MemoryModel | None  # with accumulation
    time: TimeModel | None
    gradient_bytes: int
    resident_bytes: int  # with accumulation, whatever the size: at least

    @classmethod
    def of(cls, report: Report, device: DeviceInfo, budget: Budget) -> Self:
        """Gather it from a report."""
        ground = report.evidence.ground
        options = ground if report.plan is None else report.plan.options

        def alike(others: Mapping[str, Any]) -> bool:
            return kind_of(of_options(others)) == kind_of(of_options(options))

        search = [s for s in report.samples if s.phase != "confirm" and alike(s.options)]
        confirming = [s for s in report.samples if s.phase == "confirm" and alike(s.options)]
        rows = [] if report.tuning is None else [row for row in report.tuning.trials if alike(row.options)]
        tuned = [row.as_sample() for row in rows if row.outcome in (Fate.OK, Fate.PRUNED) and row.peak_bytes]
        gone = [row.as_sample() for row in rows if row.outcome is Fate.OOM]
        trained = [*tuned, *(s for s in confirming if s.ok)]
        # Where runs differ, what the search's exact meter showed is no measurement of training.
        ran = [*(s for s in search if s.ok and device.repeatable), *trained]
        model, base = report.model, fit_memory([s for s in report.samples if s.options == ground])
        gradients = 0 if model is None else model.gradient_bytes or model.parameter_bytes
        resident = device.overhead_bytes if base is None else base.overhead_bytes
        if model is not None:
            resident += model.parameter_bytes + gradients + model.buffer_bytes + (model.optimizer_state_bytes or 0)
        peaks = dict(sorted((s.micro_batch, _held(s, gradients)) for s in trained))
        return cls(
            options=options,
            samples=tuple(sorted(ran, key=lambda s: s.device_used_bytes or 0)),
            failures=(
                *_failures(search, budget.limit_bytes),
                *_failures([*gone, *confirming], training_limit(device, budget)),
                *_raised(report.samples),
            ),
            memory=_in_training(base, peaks, alike(ground), device.repeatable),
            time=_time(report, options, ground),
            gradient_bytes=gradients,
            resident_bytes=resident,
        )

    def fits(self, size: int, limit_bytes: int, *, alone: bool) -> bool:
        """Whether a micro-batch may be taken to fit; `alone`: without accumulation, which leaves more room."""
        ran_alone = alone and any(s.accumulation_steps == 1 and s.micro_batch >= size for s in self.samples)
        failures = [each for each in self.failures if each.size <= size and (each.alone or not ran_alone)]
        if any(limit_bytes <= each.limit_bytes for each in failures):
            return False
        own = [s for s in self.samples if s.micro_batch == size and (alone or s.accumulation_steps > 1)]
        if any(self.peak(s, alone=alone) > limit_bytes for s in own):
            return False
        if self.within(size, limit_bytes, alone=alone):
            return True
        if any((self.needs(each.size) or 0) <= each.limit_bytes for each in failures):
            return False  # by the model they would have fitted: it is wrong there
        needs = self.needs(size)
        if needs is None or self.memory is None or needs > _FARTHEST * self.memory.device_bytes(size):
            return False
        return needs <= limit_bytes

    def within(self, size: int, limit_bytes: int, *, alone: bool) -> list[Sample]:
        """Give the trials at least as large that stay within the limit."""
        return [s for s in self.samples if s.micro_batch >= size and self.peak(s, alone=alone) <= limit_bytes]

    def peak(self, sample: Sample, *, alone: bool) -> int:
        """Give what a trial's size holds in an update of one micro-step, or of several."""
        return _held(sample, 0 if alone else self.gradient_bytes)

    def needs(self, size: int) -> int | None:
        """Give what a size may need, by the model and its error; None where there is no model."""
        if self.memory is None:
            return None
        predicted, largest = self.memory.device_bytes(size), max(1, self.memory.largest_size)
        if size > largest:
            # Below the optimizer's peak growth is not seen. It is no steeper than from what is held at any size.
            grown = max(0, self.memory.device_bytes(largest) - self.resident_bytes)
            predicted = max(predicted, self.resident_bytes + round(grown * size / largest))
        return predicted + self.memory.error_bytes(size)


def _held(sample: Sample, gradient_bytes: int) -> int:
    """Give the peak of a trial, with the gradients that stay between micro-steps, which a trial of one has not."""
    return (sample.device_used_bytes or 0) + (gradient_bytes if sample.accumulation_steps == 1 else 0)


def _failures(samples: Sequence[Sample], limit_bytes: int) -> list[Failure]:
    """Give the sizes that failed and are larger than what ran; one that was killed is too large for any budget."""
    found = []
    for sample in samples:
        alone = sample.accumulation_steps == 1
        ran = max((s.micro_batch for s in samples if s.ok and (alone or s.accumulation_steps > 1)), default=0)
        if sample.outcome not in (Outcome.OK, Outcome.FAILED) and sample.micro_batch > ran:
            limit = limit_bytes if sample.outcome is Outcome.OOM else math.inf
            found.append(Failure(size=sample.micro_batch, alone=alone, limit_bytes=limit))
    return found


def _raised(samples: Sequence[Sample]) -> list[Failure]:
    """Give what counts as failed after the workload raised: all that is larger than what ran, for any budget."""
    if all(sample.outcome is not Outcome.FAILED for sample in samples):
        return []
    largest = max((sample.micro_batch for sample in samples if sample.ok), default=0)
    return [Failure(size=largest + 1, alone=alone, limit_bytes=math.inf) for alone in (False, True)]


def _in_training(
    base: MemoryModel | None, peaks: Mapping[int, int], searched: bool, repeatable: bool
) -> MemoryModel | None:
    """Give the search's model, moved to the peak of the largest size in training; what others held more is its error.

    With the search's own knobs all of it is scaled, and never down. Other knobs change what grows with the size.
    """
    if base is None or not (peaks or searched):
        return None
    size = max(peaks, default=0)
    if searched:
        unseen = 1.0 if repeatable else 1 + _RESTLESS
        factor = max(1.0, peaks[size] / max(1, base.device_bytes(size))) if peaks else unseen
        names = ("fixed_bytes", "bytes_per_sample", "overhead_bytes", "floor_bytes", "worst_miss_bytes")
        model = replace(base, **{name: round(getattr(base, name) * factor) for name in names})
        if not repeatable:  # nothing that the search saw beyond the sizes of training is sure
            ahead = max(base.miss_ahead or 0.0, _RESTLESS)
            model = replace(model, largest_size=size or base.largest_size, miss_ahead=ahead)
    else:
        grown = peaks[size] - base.overhead_bytes - base.fixed_bytes
        model = replace(
            base,
            bytes_per_sample=max(0, round(grown / size)),
            worst_miss_bytes=round(peaks[size] * _UNLIKE),
            largest_size=size,
            miss_ahead=None,
        )
    missed = max((peak - model.device_bytes(each) for each, peak in peaks.items()), default=0)
    return replace(model, worst_miss_bytes=max(model.worst_miss_bytes, missed))


def _time(report: Report, options: Mapping[str, Any], ground: Mapping[str, Any]) -> TimeModel | None:
    """Give the time model of what was tuned; else that of the search, scaled to the confirming trial."""
    rows = [] if report.tuning is None else [row for row in report.tuning.trials if row.options == options]
    tuned = [row.as_sample() for row in rows if row.outcome in (Fate.OK, Fate.PRUNED)]
    if len({sample.micro_batch for sample in tuned}) > 1 and (own := fit_time(tuned)) is not None:
        return own
    model = fit_time([s for s in report.samples if s.options == ground and s.phase != "confirm"])
    last = next((s for s in reversed(report.samples) if s.phase == "confirm" and s.ok and s.step_seconds), None)
    if model is None or last is None or last.step_seconds is None:
        return model
    factor = last.step_seconds / max(1e-12, model.update_seconds((last.micro_batch,) * last.accumulation_steps))
    return TimeModel(
        fixed_seconds=model.fixed_seconds * factor,
        seconds_per_sample=model.seconds_per_sample * factor,
        optimizer_seconds=model.optimizer_seconds * factor,
    )

"""Another target, budget or number of ranks, answered from a run that was made before: no device is touched. Pure.

What ran is known; what lies below a size that ran fits too; beyond that the memory model decides, with its error taken
off the budget. The answer says which of the three it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoaccum.confirm import training_limit
from autoaccum.errors import NothingFits, UsageError
from autoaccum.fit import TimeModel, fit_memory, fit_time
from autoaccum.plans import Plan, rank_share
from autoaccum.records import Budget, DeviceInfo, MemoryModel, Record, Sample
from autoaccum.report.record import Report
from autoaccum.solve import SPLITS, Known, shortlist, solve
from autoaccum.tuning.results import Fate
from autoaccum.units import format_bytes, parse_budget


@dataclass(frozen=True, kw_only=True, slots=True)
class Replan(Record):
    """An answer without a trial."""

    plan: Plan
    plans: tuple[Plan, ...]
    budget: Budget
    basis: str  # "confirmed", "measured", "below": smaller than a size that ran, or "predicted"
    error_bytes: int | None  # of the peak; None where it was measured
    words: str  # the same for people
    warnings: tuple[str, ...] = ()


def replan(
    report: Report,
    *,
    target_batch: int | None = None,
    memory_budget: str | int | None = None,
    world_size: int | None = None,
    split: str | None = None,
) -> Replan:
    """Give the plans for what is asked, else as in the run; raise where nothing fits, or nothing is known."""
    if report.device is None or report.budget is None or not any(sample.ok for sample in report.samples):
        raise UsageError("no trial of that run ended well, so it has nothing to plan from: probe again")
    target = _whole("--target-batch", report.target_batch if target_batch is None else target_batch)
    ranks = _whole("--world-size", report.world_size if world_size is None else world_size)
    asked = split or (report.request.split if report.request is not None else "auto")
    if asked not in SPLITS:
        raise UsageError(f'unknown split "{asked}": use {", ".join(SPLITS[:-1])} or {SPLITS[-1]}')
    rank_batch = rank_share(target, ranks)
    budget, warnings = _budget(report.device, report.budget, memory_budget)
    past = _Past.of(report)
    limit = training_limit(report.device, budget)
    known = Known(samples=past.samples, memory=past.memory, time=past.time, budget=budget)

    def fits(size: int) -> bool:
        return past.fits(size, limit, alone=size == rank_batch)

    plans = [replace(plan, options=past.options) for plan in solve(target, ranks, asked, fits, known)]
    as_before = (target, ranks, budget.limit_bytes) == (
        report.target_batch, report.world_size, report.budget.limit_bytes
    )  # fmt: skip
    if as_before and split is None and report.plan is not None:
        others = [plan for plan in plans if plan.micro_batch != report.plan.micro_batch]
        return Replan(
            plan=report.plan,
            plans=shortlist([report.plan, *others]),
            budget=budget,
            basis="confirmed",
            error_bytes=None,
            words="confirmed: this is the plan of the run itself",
            warnings=warnings,
        )
    if not plans:
        smallest = past.needs(1)
        least = "" if smallest is None else f": a micro-batch of 1 is predicted to need {format_bytes(smallest)}"
        raise NothingFits(f"nothing fits {format_bytes(budget.limit_bytes)}, by what that run measured{least}")
    return _answer(plans, past, budget, warnings)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Past:
    """What a run knows, with the knobs of its plan, in processes set up as training is."""

    options: dict[str, Any]
    samples: tuple[Sample, ...]  # of sizes that ran; without accumulation, which holds less, those of one step
    memory: MemoryModel | None
    time: TimeModel | None
    gradient_bytes: int
    smallest_failed: int | None
    failed_under: int  # the limit that it failed under

    @classmethod
    def of(cls, report: Report) -> _Past:
        searched = next((s.options for s in reversed(report.samples) if s.ok and s.phase != "confirm"), {})
        options = searched if report.plan is None else report.plan.options
        trained = _as_trained(report, options)
        memory = _memory(fit_memory([s for s in report.samples if s.options == searched]), trained)
        return cls(
            options=options,
            samples=(*_searched(report, options, memory), *trained),
            memory=memory,
            time=_time(report, options, searched),
            gradient_bytes=0 if report.model is None else report.model.gradient_bytes,
            smallest_failed=report.bracket.smallest_failed if options == searched else None,
            failed_under=0 if report.budget is None else report.budget.limit_bytes,
        )

    def fits(self, size: int, limit_bytes: int, *, alone: bool) -> bool:
        """Whether a micro-batch may be taken to fit; `alone`: without accumulation, which leaves more room."""
        if any(s.micro_batch >= size and self._held(s, alone) <= limit_bytes for s in self.samples):
            return True
        failed = self.smallest_failed
        if failed is not None and size >= failed and limit_bytes <= self.failed_under:
            return False
        needs = self.needs(size)
        return needs is not None and needs <= limit_bytes

    def needs(self, size: int) -> int | None:
        """Give what a size needs at the most, where it did not run: as predicted, and the prediction's error."""
        if self.memory is None:
            return None
        return self.memory.device_bytes(size) + self.memory.error_bytes(size)

    def _held(self, sample: Sample, alone: bool) -> int:
        """Give the peak of a trial; between micro-steps, which a trial of one has not, gradients stay."""
        missing = self.gradient_bytes if sample.accumulation_steps == 1 and not alone else 0
        return (sample.device_used_bytes or 0) + missing


def _as_trained(report: Report, options: Mapping[str, Any]) -> list[Sample]:
    """Give what ran as training does, with these knobs: tuning trials, and the confirming one after them."""
    rows = () if report.tuning is None else report.tuning.trials
    timed = [r for r in rows if r.outcome in (Fate.OK, Fate.PRUNED) and r.options == options and r.peak_bytes]
    tuned = [replace(row.as_sample(), device_used_bytes=row.peak_bytes) for row in timed]
    return [*tuned, *(s for s in report.samples if s.ok and s.phase == "confirm" and s.options == options)]


def _searched(report: Report, options: Mapping[str, Any], memory: MemoryModel | None) -> list[Sample]:
    """Give what ran in the search; where training holds more than the search's exact meter showed, with that."""
    ran = [s for s in report.samples if s.ok and s.phase != "confirm" and s.options == options]
    if memory is None:
        return ran
    return [
        replace(s, device_used_bytes=max(s.device_used_bytes or 0, memory.device_bytes(s.micro_batch)))
        if s.accumulation_steps > 1
        else s
        for s in ran
    ]


def _memory(base: MemoryModel | None, trained: Sequence[Sample]) -> MemoryModel | None:
    """Give the search's model, scaled to what was measured as in training at the largest such size."""
    peaks = {s.micro_batch: s.device_used_bytes or 0 for s in trained if s.accumulation_steps > 1 and s.micro_batch > 1}
    if base is None or not peaks:
        return base
    factor = peaks[max(peaks)] / max(1, base.device_bytes(max(peaks)))
    scatter = max(abs(round(base.device_bytes(size) * factor) - peak) for size, peak in peaks.items())
    return replace(
        base,
        fixed_bytes=round(base.fixed_bytes * factor),
        bytes_per_sample=round(base.bytes_per_sample * factor),
        overhead_bytes=round(base.overhead_bytes * factor),
        floor_bytes=round(base.floor_bytes * factor),
        worst_miss_bytes=max(round(base.worst_miss_bytes * factor), scatter),
    )


def _time(report: Report, options: Mapping[str, Any], searched: Mapping[str, Any]) -> TimeModel | None:
    """Give the time model of what was tuned; else that of the search, scaled to the confirming trial."""
    rows = [] if report.tuning is None else [r for r in report.tuning.trials if r.options == options]
    tuned = [row.as_sample() for row in rows if row.outcome in (Fate.OK, Fate.PRUNED)]
    if len({sample.micro_batch for sample in tuned}) > 1:
        return fit_time(tuned)
    model = fit_time([s for s in report.samples if s.options == searched and s.phase != "confirm"])
    last = next((s for s in reversed(report.samples) if s.phase == "confirm" and s.ok and s.step_seconds), None)
    if model is None or last is None or last.step_seconds is None:
        return model
    factor = last.step_seconds / max(1e-12, model.update_seconds((last.micro_batch,) * last.accumulation_steps))
    return TimeModel(
        fixed_seconds=model.fixed_seconds * factor,
        seconds_per_sample=model.seconds_per_sample * factor,
        optimizer_seconds=model.optimizer_seconds * factor,
    )


def _budget(device: DeviceInfo, before: Budget, asked: str | int | None) -> tuple[Budget, tuple[str, ...]]:
    if asked is None:
        return before, ()
    limit = asked if isinstance(asked, int) else parse_budget(asked, device.total_bytes)
    warnings: tuple[str, ...] = ()
    if limit > device.total_bytes:
        warnings = (
            f"{format_bytes(limit)} is more than {device.name} has ({format_bytes(device.total_bytes)}): on another "
            f"device context and libraries take another amount, and the speed is another",
        )
    return Budget(limit_bytes=limit, reserve_bytes=0, source="user"), warnings


def _answer(plans: list[Plan], past: _Past, budget: Budget, warnings: tuple[str, ...]) -> Replan:
    best = plans[0]
    largest = max((sample.micro_batch for sample in past.samples), default=0)
    error = None if best.measured or past.memory is None else past.memory.error_bytes(best.micro_batch)
    basis = "measured" if best.measured else "below" if best.micro_batch < largest else "predicted"
    off = (
        "" if error is None or not best.peak_bytes else f", its peak predicted to within {error / best.peak_bytes:.1%}"
    )
    words = {
        "measured": f"measured: that run has run micro-batch {best.micro_batch}; the speed is a model's",
        "below": f"micro-batch {best.micro_batch} was not run, and is smaller than {largest}, which was{off}",
        "predicted": f"predicted: nothing as large was run{off}; probe to be sure",
    }
    return Replan(
        plan=best,
        plans=shortlist(plans),
        budget=budget,
        basis=basis,
        error_bytes=error,
        words=words[basis],
        warnings=warnings,
    )


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} must be a whole number of 1 or more, not {value!r}")
    return value

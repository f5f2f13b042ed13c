"""Another target, budget or number of ranks, answered from a run that was made before: no device is touched. Pure.

What ran is known; what lies below a size that ran fits too; beyond that the memory model decides, with its error taken
off the budget. The answer says which of the three it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoaccum.advice import shared_by_ranks
from autoaccum.confirm import training_limit
from autoaccum.errors import NothingFits, UsageError
from autoaccum.plans import Plan, rank_share
from autoaccum.recipe import low_precision
from autoaccum.records import Budget, DeviceInfo, Record
from autoaccum.report.past import Past
from autoaccum.report.record import Report
from autoaccum.solve import SPLITS, Known, shortlist, solve
from autoaccum.units import choice, format_bytes, parse_budget, whole_number

_MOST_SAMPLES = 1_000_000  # of one rank: a plan lists each of its micro-batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Replan(Record):
    """An answer without a trial."""

    plan: Plan
    plans: tuple[Plan, ...]
    budget: Budget
    basis: str  # "confirmed", "measured", "below": no larger than what ran, or "predicted"
    error_bytes: int | None  # what the peak may be more; None where it was measured, or no model tells
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
    target = whole_number("--target-batch", report.target_batch if target_batch is None else target_batch)
    ranks = whole_number("--world-size", report.world_size if world_size is None else world_size)
    before = "auto" if report.request is None else report.request.split
    asked = choice("split", before if split is None else split, SPLITS)
    rank_batch = rank_share(target, ranks)
    if rank_batch > _MOST_SAMPLES:
        raise UsageError(f"--target-batch must be at most {_MOST_SAMPLES} for each rank, not {rank_batch}")
    budget, warnings = _budget(report.device, report.budget, memory_budget)
    past = Past.of(report, report.device, report.budget)
    limit = training_limit(report.device, budget)
    known = Known(samples=past.samples, memory=past.memory, time=past.time, budget=budget)

    def fits(size: int) -> bool:
        return past.fits(size, limit, alone=size == rank_batch)

    plans = [_completed(plan, past, budget) for plan in solve(target, ranks, asked, fits, known)]
    question = (target, ranks, asked, budget.limit_bytes)
    if report.plan is not None and question == (
        report.target_batch, report.world_size, before, report.budget.limit_bytes
    ):  # fmt: skip
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
        least = "" if smallest is None else f": a micro-batch of 1 may need {format_bytes(smallest)}"
        free = "" if limit == budget.limit_bytes else f" ({format_bytes(limit)}, as some is left where runs differ)"
        asked_for = f"{format_bytes(budget.limit_bytes)}{free}"
        raise NothingFits(f"nothing fits {asked_for} for certain, by what that run measured{least}; probe to find out")
    best = replace(plans[0], evidence=replace(report.evidence, budget=budget))
    searched = any(s.ok and s.micro_batch == best.micro_batch and s.phase != "confirm" for s in report.samples)
    basis, error, words = _basis(best, past, limit, searched)
    return Replan(
        plan=best,
        plans=shortlist([best, *plans[1:]]),
        budget=budget,
        basis=basis,
        error_bytes=error,
        words=words,
        warnings=(*warnings, *shared_by_ranks(ranks), *low_precision(best, report.model)),
    )


def _completed(plan: Plan, past: Past, budget: Budget) -> Plan:
    """Give the plan with its knobs; a peak that is predicted is no more than that of a larger size."""
    peak = plan.peak_bytes
    if not plan.measured:
        larger = [s for s in past.samples if s.micro_batch >= plan.micro_batch]
        above = [past.peak(s, alone=plan.accumulation_steps == 1) for s in larger]
        peak = min([*above, *(() if peak is None else (peak,))], default=None)
    headroom = None if peak is None else budget.limit_bytes - peak
    return replace(plan, options=past.options, peak_bytes=peak, headroom_bytes=headroom)


def _basis(plan: Plan, past: Past, limit_bytes: int, searched: bool) -> tuple[str, int | None, str]:
    """Say what a plan rests on: the word, by how much its peak may be off, and both for people.

    `searched`: its size ran in the search, which counts as measured only where runs do not differ.
    """
    size, peak = plan.micro_batch, plan.peak_bytes
    if plan.measured:
        return "measured", None, f"measured: that run has run micro-batch {size}; the speed is a model's"
    ran = past.within(size, limit_bytes, alone=plan.accumulation_steps == 1)
    needs = past.needs(size)
    error = None if needs is None or peak is None else max(0, needs - peak)
    off = (
        f"; its peak is predicted, and may be {error / peak:.1%} more: {format_bytes(peak + error)}"
        if error and peak
        else ""
    )
    if any(sample.micro_batch == size for sample in ran):
        return "below", error, f"micro-batch {size} ran in one step only; gradients that stay are added{off}"
    how = "ran in the search only, which holds less than training" if searched else "was not run"
    if ran:
        larger = max(sample.micro_batch for sample in ran)
        return "below", error, f"micro-batch {size} {how}, and is smaller than {larger}, which ran as training is{off}"
    return (
        "predicted",
        error,
        f"predicted: micro-batch {size} {how}, nor anything larger within this budget{off}; probe to be sure",
    )


def _budget(device: DeviceInfo, before: Budget, asked: str | int | None) -> tuple[Budget, tuple[str, ...]]:
    if asked is None:
        return before, ()
    limit = parse_budget(asked if isinstance(asked, str) else f"{asked}B", device.total_bytes)
    if limit == before.limit_bytes:
        return before, ()
    warnings: tuple[str, ...] = ()
    if limit > device.total_bytes:
        warnings = (
            f"{format_bytes(limit)} is more than {device.name} has ({format_bytes(device.total_bytes)}): on another "
            f"device context and libraries take another amount, and the speed is another",
        )
    return Budget(limit_bytes=limit, reserve_bytes=0, source="user"), warnings

"""A run in words: the answer in one sentence, and the line to paste. Pure."""

from __future__ import annotations

from autoaccum.plans import Plan
from autoaccum.records import Outcome
from autoaccum.report.record import Report, Status
from autoaccum.units import format_bytes


def sentence(report: Report) -> str:
    """Give the answer in one sentence; where there is none, why."""
    plan, budget = report.plan, report.budget
    if plan is not None:
        peak = "" if plan.peak_bytes is None else f", peak {format_bytes(plan.peak_bytes)}"
        of = "" if not peak or budget is None else f" of {format_bytes(budget.limit_bytes)}"
        speed = "" if plan.samples_per_second is None else f", {plan.samples_per_second:.4g} samples/s"
        return f"Train with {plan}{peak}{of}{speed}."
    limit = "" if budget is None else f" of {format_bytes(budget.limit_bytes)}"
    return {
        Status.NOTHING_FITS: f"Nothing fits: not even the smallest micro-batch runs within the budget{limit}.",
        Status.FAILED: f"No plan: {_reason(report)}",
        Status.INTERRUPTED: f"Interrupted: this is what was measured until then.{_go_on(report)}",
        Status.RUNNING: f"Killed, or still running: this is what was measured so far.{_go_on(report)}",
        Status.PLANNED: "No plan.",
    }[report.status]


def _go_on(report: Report) -> str:
    return "" if report.folder is None else f" To go on: autoaccum probe --resume {report.folder}"


def _reason(report: Report) -> str:
    """Say why a run failed: by what its last trial raised; others end for reasons that no trial knows of."""
    last = report.samples[-1] if report.samples else None
    return last.message if last is not None and last.outcome is Outcome.FAILED else "the run failed."


def code(plan: Plan) -> str:
    """Give the line to paste into a training script. The last micro-batch of `Plan.of` takes the rest."""
    ranks = f", world_size={plan.world_size}" if plan.world_size > 1 else ""
    options = f", options={plan.options!r}" if plan.options else ""
    return (
        f"plan = autoaccum.Plan.of(target_batch={plan.effective_batch}, micro_batch={plan.micro_batch}{ranks}{options})"
    )

"""The best plan's micro-batch once more, in a fresh process set up as training will be, before it is returned.

What the search saw may not hold there: malloc keeps memory, a fresh CUDA process lays its blocks out otherwise, a
neighbour grew. Then the next plans are tried: down in growing strides until one runs, and from there back up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoaccum.advice import tight, unconfirmed
from autoaccum.errors import WorkloadError
from autoaccum.lab import Lab
from autoaccum.records import Budget, DeviceInfo, Outcome, Plan, Sample, Trial

PHASE = "confirm"


def confirm(plans: Sequence[Plan], lab: Lab, device: DeviceInfo, budget: Budget) -> list[Plan]:
    """Give the first of the ranked plans that runs, with what was measured, and those that rank below it."""
    # Where runs differ, the confirming one is longer, and what it leaves free is for those that need more.
    share, updates = (1.0, 3) if device.repeatable else (0.95, 6)
    lab.as_in_training(int(budget.limit_bytes * share))
    best: Plan | None = None
    failed, ran, stride = -1, len(plans), 1  # plans up to `failed` did not run, `ran` did or is beyond the end
    while failed + 1 < ran:
        index = (failed + ran) // 2 if best else min(failed + stride, len(plans) - 1)
        sample = lab.run(_trial(plans[index], updates), 1)
        if sample.outcome is Outcome.FAILED:
            raise WorkloadError(f"{sample.message} (micro-batch {sample.micro_batch})", details=sample.details)
        if sample.ok:
            best, ran = _confirmed(plans[index], sample, budget), index
        else:
            if failed < 0:
                lab.warn(unconfirmed(sample, device))
            failed, stride = index, stride if failed < 0 else 2 * stride
    if best is None:
        return []
    lab.warn(*tight(best, device, budget))
    return [best, *plans[ran + 1 :]]


def _trial(plan: Plan, updates: int) -> Trial:
    return Trial(
        micro_batch=plan.micro_batch,
        accumulation_steps=min(2, plan.accumulation_steps),
        updates=updates,
        phase=PHASE,
        fresh=True,
    )


def _confirmed(plan: Plan, sample: Sample, budget: Budget) -> Plan:
    """Give the plan with what its confirming trial measured in place of predictions."""
    peak, whole, optimizer = sample.device_used_bytes or 0, sample.step_seconds, sample.optimizer_seconds
    speed = None
    if whole is not None and optimizer is not None:
        per_sample = (whole - optimizer) / (sample.accumulation_steps * sample.micro_batch)
        speed = plan.effective_batch / (per_sample * plan.rank_batch + optimizer)
    return replace(
        plan,
        peak_bytes=peak,
        headroom_bytes=budget.limit_bytes - peak,
        samples_per_second=speed,
        measured=True,
    )

"""The best plan's micro-batch once more, in a fresh process set up as training will be, before it is returned.

What the search saw may not hold there: malloc keeps memory, a fresh CUDA process lays its blocks out otherwise, a
neighbour grew. Then smaller plans are tried, in growing strides until one runs, and from there those that rank better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoaccum.advice import tight, unconfirmed
from autoaccum.lab import Lab
from autoaccum.plans import Plan
from autoaccum.records import Budget, DeviceInfo, Sample, Trial


def confirm(plans: Sequence[Plan], lab: Lab, device: DeviceInfo, budget: Budget) -> list[Plan]:
    """Give the best of the ranked plans that runs, with what was measured, and the others that may fit."""
    # Where runs differ, the confirming one is longer, and what it leaves free is for those that need more.
    share, updates = (1.0, 3) if device.repeatable else (0.95, 6)
    lab.as_in_training(int(budget.limit_bytes * share))
    open_, best, stride = list(plans), None, 0  # open: those that may fit, and rank above the best so far
    others = list(plans)
    while open_:
        by_size = sorted(open_, key=lambda plan: -plan.micro_batch)
        if best is not None:
            plan = by_size[len(by_size) // 2]
        else:
            plan = open_[0] if stride == 0 else by_size[min(stride, len(by_size)) - 1]
        sample = lab.run(_trial(plan, updates))
        if sample.ok:
            best = _confirmed(plan, sample, budget)
            others = [other for other in others if other is not plan]
            open_ = open_[: open_.index(plan)]
        else:
            if stride == 0:
                lab.warn(unconfirmed(sample, device))
            stride = max(1, 2 * stride) if best is None else stride
            open_ = [other for other in open_ if other.micro_batch < plan.micro_batch]
            others = [other for other in others if other.micro_batch < plan.micro_batch]
    if best is None:
        return []
    lab.warn(*tight(best, device, budget))
    return [best, *(other for other in others if other.micro_batch != best.micro_batch)]


def _trial(plan: Plan, updates: int) -> Trial:
    return Trial(
        micro_batch=plan.micro_batch,
        accumulation_steps=min(2, plan.accumulation_steps),
        last_micro_batch=None if plan.even else plan.micro_batches[-1],
        updates=updates,
        phase="confirm",
        fresh=True,
    )


def _confirmed(plan: Plan, sample: Sample, budget: Budget) -> Plan:
    """Give the plan with what its confirming trial measured in place of predictions."""
    peak, optimizer = sample.device_used_bytes or 0, sample.optimizer_seconds or 0.0
    speed = None
    if sample.step_seconds is not None and sample.samples_per_second is not None:
        per_sample = (sample.step_seconds - optimizer) / (sample.samples_per_second * sample.step_seconds)
        speed = plan.effective_batch / (per_sample * plan.rank_batch + optimizer)
    return replace(
        plan,
        peak_bytes=peak,
        headroom_bytes=budget.limit_bytes - peak,
        samples_per_second=speed,
        measured=True,
    )

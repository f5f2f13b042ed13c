"""The best plan's micro-batch once more, in a fresh process set up as training will be, before it is returned.

What the search saw may not hold there: malloc keeps memory, a fresh CUDA process lays its blocks out otherwise, a
neighbour grew. Then smaller plans are tried, in growing strides until one runs, and from there those that rank better.
The figures that the answer states are those of this run: whole updates, as training makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoaccum.advice import crowded, restless, tight, unconfirmed
from autoaccum.errors import WorkloadError
from autoaccum.knobs.names import of_options, words
from autoaccum.lab import Lab
from autoaccum.plans import Plan
from autoaccum.records import Budget, DeviceInfo, Sample, Trial
from autoaccum.solve import plainest

_WHOLE_SECONDS = 2.0  # about as long as whole updates are timed, where one takes less
_MOST_WHOLE = 5


def training_limit(device: DeviceInfo, budget: Budget) -> int:
    """Give the limit under which a plan is confirmed: where runs differ, some is left for those that need more."""
    return budget.limit_bytes if device.repeatable else int(budget.limit_bytes * 0.95)


def confirming(plan: Plan, device: DeviceInfo) -> Trial:
    """Give the confirming trial: some short updates for the memory, then whole ones for the time."""
    expected = plan.effective_batch / plan.samples_per_second if plan.samples_per_second else _WHOLE_SECONDS
    return Trial(
        micro_batch=plan.micro_batch,
        accumulation_steps=min(2, plan.accumulation_steps),
        micro_batches=plan.micro_batches,
        updates=3 if device.repeatable else 6,  # where runs differ, a longer one shows more
        whole_updates=max(1, min(_MOST_WHOLE, int(_WHOLE_SECONDS / expected))),
        phase="confirm",
        fresh=True,
        knobs=of_options(plan.options),
    )


def first_that_runs(plans: Sequence[Plan], lab: Lab, device: DeviceInfo, budget: Budget) -> tuple[int, Plan | None]:
    """Give the first of plans that were tuned which runs in a fresh process, with its place among them."""
    for index, plan in enumerate(plans):
        try:
            sample = lab.run(confirming(plan, device))
        except WorkloadError as error:
            if not plan.options:
                raise
            lab.warn(f"the plan with {', '.join(words(of_options(plan.options)))} raised in a fresh process: {error}")
            continue
        if sample.ok:
            best = _confirmed(plan, sample, budget)
            lab.warn(*tight(best, device, budget), *crowded(sample), *restless(plan, best))
            return index, best
        lab.warn(unconfirmed(sample, device))
    return len(plans), None


def confirm(plans: Sequence[Plan], lab: Lab, device: DeviceInfo, budget: Budget) -> list[Plan]:
    """Give the best of the ranked plans that runs, with what was measured, and the others that may fit."""
    open_, best, stride = list(plans), None, 0  # open: those that may fit, and rank above the best so far
    others, warnings = list(plans), list[str]()
    while open_:
        by_size = sorted(open_, key=lambda plan: -plan.micro_batch)
        if best is not None:
            plan = by_size[len(by_size) // 2]
        else:
            plan = open_[0] if stride == 0 else by_size[min(stride, len(by_size)) - 1]
        sample = lab.run(confirming(plan, device))
        if sample.ok:
            best, warnings = _confirmed(plan, sample, budget), crowded(sample)
            others = [other for other in others if other is not plan]
            open_ = open_[: open_.index(plan)]
        else:
            if stride == 0:
                lab.warn(unconfirmed(sample, device))
            plain = plainest(plan) if stride == 0 and plan.measured else None
            if plain is not None:  # its size ran in the search
                open_[open_.index(plan)] = others[others.index(plan)] = plain
                continue
            stride = max(1, 2 * stride) if best is None else stride
            open_ = [other for other in open_ if other.micro_batch < plan.micro_batch]
            others = [other for other in others if other.micro_batch < plan.micro_batch]
    if best is None:
        return []
    lab.warn(*tight(best, device, budget), *warnings)
    return [best, *(other for other in others if other.micro_batch != best.micro_batch)]


def _confirmed(plan: Plan, sample: Sample, budget: Budget) -> Plan:
    """Give the plan with what its confirming trial measured in place of predictions."""
    peak = sample.device_used_bytes or 0
    speed = sample.samples_per_second
    return replace(
        plan,
        peak_bytes=peak,
        headroom_bytes=budget.limit_bytes - peak,
        samples_per_second=None if speed is None else speed * plan.world_size,
        measured=True,
    )

"""What to tell a person when no plan was found: what is needed, what there is, what would help."""

from __future__ import annotations

from collections.abc import Sequence

from autoaccum.errors import AutoaccumError, NothingFits, WorkloadError
from autoaccum.knobs.names import words
from autoaccum.oom import requested_bytes
from autoaccum.plans import Plan
from autoaccum.records import Budget, DeviceInfo, Knobs, ModelInfo, Outcome, Sample
from autoaccum.units import format_bytes

# What the search sets through mallopt: malloc then returns memory at once.
_MALLOC = "MALLOC_MMAP_THRESHOLD_=65536 MALLOC_TRIM_THRESHOLD_=65536"
_RETRIES = 3  # in the confirming run, which makes as many updates and some more
_TIGHT = 0.15  # two runs with glibc's defaults differed by as much (benchmarks/plan_holds.py)
_RESTLESS = 1.4  # between two measurements of the same plan
_HELP = (
    "raise --memory-budget, allow what saves some (--allow checkpoint,bf16), or take less optimizer state than Adam's"
)


def no_plan(samples: Sequence[Sample], device: DeviceInfo, budget: Budget, model: ModelInfo | None) -> AutoaccumError:
    """Give the error for a search that found nothing, by how its smallest size ended."""
    limit = format_bytes(budget.limit_bytes)
    if any(sample.ok for sample in samples):
        return NothingFits(
            f"nothing fits the budget of {limit} for certain: what ran once did not run again in a fresh process; "
            f"raise --memory-budget, or see that nothing else takes the memory meanwhile"
        )
    ended = [sample for sample in samples if sample.outcome is not Outcome.FAILED]
    smallest = min(ended, key=lambda sample: sample.micro_batch)
    size = f"micro-batch {smallest.micro_batch}"
    if smallest.outcome is Outcome.TIMED_OUT:
        return WorkloadError(
            f"{size} gave {smallest.message}: raise --timeout, or look for what the workload waits for",
            details=smallest.details,
        )
    if smallest.outcome is Outcome.KILLED:
        return WorkloadError(
            f"{size} did not survive: {smallest.message}; see whether it runs by itself, or lower --memory-budget",
            details=smallest.details,
        )
    if budget.limit_bytes <= device.overhead_bytes:
        held = format_bytes(device.overhead_bytes)
        return NothingFits(
            f"nothing fits the budget of {limit}: the process holds {held} before any trial; raise --memory-budget"
        )
    needed = at_least(smallest, device, model)
    if needed < budget.limit_bytes:
        return NothingFits(
            f'nothing fits the budget of {limit}: {size} ended with "{smallest.message}"; '
            f"see that nothing else takes the memory meanwhile"
        )
    return NothingFits(
        f"nothing fits: {size} needs more than {format_bytes(needed)} and the budget is {limit}; {_HELP}"
    )


def unconfirmed(sample: Sample, device: DeviceInfo) -> str:
    """Give the warning for a size that ran in the search and not in a fresh process."""
    start = f"micro-batch {sample.micro_batch} ran in the search but not in a fresh process"
    if sample.outcome is not Outcome.OOM:
        return f"{start}: {sample.message}"
    if not device.repeatable:
        return (
            f"{start}, where malloc keeps freed memory and 5 % of the budget is left free: "
            f"to use it, train with {_MALLOC} in the environment"
        )
    return f"{start}: its memory is laid out otherwise there, or another process took some meanwhile"


def tight(plan: Plan, device: DeviceInfo, budget: Budget) -> list[str]:
    """Give the warning for a plan whose headroom another run may need, where runs differ."""
    headroom = plan.headroom_bytes or 0
    if device.repeatable or headroom >= _TIGHT * budget.limit_bytes:
        return []
    return [
        f"the plan leaves {format_bytes(headroom)} of the budget, and malloc may keep more than that in a longer run: "
        f"to hold the budget for certain, train with {_MALLOC} in the environment"
    ]


def crowded(sample: Sample) -> list[str]:
    """Give the warning for a confirmed plan that only fits because the allocator gives its cache back all along."""
    retries = sample.alloc_retries or 0
    if retries < _RETRIES:
        return []
    return [
        f"micro-batch {sample.micro_batch} fits only because PyTorch's allocator gave cached memory back, {retries} "
        f"times in the confirming run, and each time costs: where speed matters, compare the next plan of the report"
    ]


def restless(tuned: Plan, confirmed: Plan) -> list[str]:
    """Give the warning for a machine on which two measurements of the same plan are far apart."""
    if not tuned.samples_per_second or not confirmed.samples_per_second:
        return []
    ratio = confirmed.samples_per_second / tuned.samples_per_second
    if 1 / _RESTLESS < ratio < _RESTLESS:
        return []
    return [
        f"the confirming run made {ratio:.2f} times the samples/s of the same plan in tuning: something else is at "
        f"work on this machine, and the choice may be by chance; tune again when it is quiet"
    ]


def rescued(knobs: Knobs, plans: Sequence[Plan]) -> str:
    """Give the warning for plans that fit only with knobs that save memory."""
    largest = max(plan.micro_batch for plan in plans)
    return f"nothing fits as it is; with {', '.join(words(knobs))} micro-batch {largest} ran"


def many_steps(plan: Plan, largest_ok: int) -> list[str]:
    """Give the warning for an even plan that needs far more steps than an uneven one would."""
    fewest = -(-plan.rank_batch // max(1, largest_ok))
    if plan.accumulation_steps < 2 * fewest or plan.accumulation_steps < 4:
        return []
    return [
        f"{plan.rank_batch} has no divisor near the largest size that fits: the plan takes {plan.accumulation_steps} "
        f"steps where --split uneven, or a target with more divisors, would take about {fewest}"
    ]


def shared_by_ranks(world_size: int) -> list[str]:
    """Give the warning for several ranks: the trials run on one, without what DDP holds."""
    if world_size == 1:
        return []
    return [
        "the trials ran on one rank: DistributedDataParallel holds another copy of the gradients in its buckets, "
        "unless it is made with gradient_as_bucket_view=True; leave room for it"
    ]


def at_least(sample: Sample, device: DeviceInfo, model: ModelInfo | None) -> int:
    """Give a lower bound of what a size needs that ran out of memory.

    It held its peak when it asked for more; and it cannot do without weights and gradients.
    """
    held = sample.device_used_bytes or device.overhead_bytes
    asked = requested_bytes(sample.message) or 0
    weights = 0 if model is None else model.parameter_bytes + model.gradient_bytes
    return max(held + asked, device.overhead_bytes + weights)

"""From a lab to ranked plans, the best of them confirmed: the middle of the line, for files and live objects alike."""

from __future__ import annotations

from autoaccum import search
from autoaccum.advice import many_steps, no_plan, shared_by_ranks
from autoaccum.confirm import confirm
from autoaccum.errors import WorkloadError
from autoaccum.fit import fit_memory, fit_time
from autoaccum.lab import Lab
from autoaccum.plans import Plan, rank_share
from autoaccum.records import Budget, DeviceInfo, Request
from autoaccum.solve import Known, candidates, solve


def find_plans(request: Request, lab: Lab, device: DeviceInfo, budget: Budget) -> list[Plan]:
    """Search, solve and confirm; give the plans, best first. Raise where there is none."""
    lab.warn(*shared_by_ranks(request.world_size))
    run_search(request, lab, device)
    plans = confirm(ranked(request, lab, budget), lab, device, budget)
    if not plans:
        raise no_plan(lab.samples, device, budget, lab.model)
    largest_ok = search.accumulating(lab.samples).largest_ok or 0
    if plans[0].accumulation_steps > 1:
        lab.warn(*lab.couplings(largest_ok))
    if request.split == "even":
        lab.warn(*many_steps(plans[0], largest_ok))
    return plans


def run_search(
    request: Request, lab: Lab, device: DeviceInfo, strategy: search.Strategy = search.double_then_bisect
) -> None:
    """Run what the strategy asks for until it has seen enough."""
    rank_batch = rank_share(request.target_batch, request.world_size)
    goal = search.Goal(
        rank_batch=rank_batch,
        candidates=candidates(rank_batch, request.split),
        find_max=request.find_max,
        certify=not device.repeatable,
    )
    while (trial := strategy(lab.samples, goal)) is not None:
        remaining = search.at_most(lab.samples, goal)
        try:
            lab.run(trial, None if remaining is None else remaining + 1)  # the confirming trial follows
        except WorkloadError:
            # BatchNorm refuses a single sample; where two did not fit, that is no news.
            if trial.micro_batch > 1 or search.bracket(lab.samples).smallest_failed is None:
                raise
            return


def ranked(request: Request, lab: Lab, budget: Budget) -> list[Plan]:
    """Give every plan whose micro-batch ran, or lies below one that did, best first."""
    largest = search.accumulating(lab.samples).largest_ok or 0
    ran = {s.micro_batch for s in lab.samples if s.ok}
    failed = {s.micro_batch for s in lab.samples if not s.ok} - ran
    whole = rank_share(request.target_batch, request.world_size)
    known = Known(samples=lab.samples, memory=fit_memory(lab.samples), time=fit_time(lab.samples), budget=budget)

    def fits(size: int) -> bool:
        return size in ran if size == whole else size <= largest and size not in failed

    return solve(request.target_batch, request.world_size, request.split, fits, known)

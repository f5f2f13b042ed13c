"""From a lab to ranked plans, the best of them confirmed: the middle of the line, for files and live objects alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from autoaccum import search
from autoaccum.advice import many_steps, no_plan, rescued, shared_by_ranks
from autoaccum.confirm import confirm, first_that_runs, training_limit
from autoaccum.errors import NothingFits, WorkloadError
from autoaccum.fit import fit_memory, fit_time
from autoaccum.knobs.names import words
from autoaccum.lab import Lab
from autoaccum.plans import Plan, rank_share
from autoaccum.records import PLAIN, Budget, Certificate, DeviceInfo, Knobs, Prior, Request, Sample
from autoaccum.solve import Known, candidates, solve
from autoaccum.tuning.results import Tuned, Tuning
from autoaccum.units import MIB

_METER_ERROR = 4 * MIB  # where runs differ: of what is resident in main memory, tensors or not
_TUNED_TRIES = 4  # tuned plans that may fail in a fresh process, before those of the search are tried


@dataclass(kw_only=True, slots=True)
class Found:
    """What is known so far; an early end leaves what there is."""

    plans: Sequence[Plan] = ()
    tuning: Tuning | None = None  # kept by whoever tunes, also where that ends early
    certificate: Certificate | None = None  # what the end of the search rests on
    ground: Knobs = PLAIN  # the knobs that the search stood on: none, unless nothing fits without

    def samples(self, all_samples: Sequence[Sample]) -> list[Sample]:
        """Give the samples that the plans rest on."""
        return with_knobs(all_samples, self.ground)


def find_plans(
    request: Request,
    lab: Lab,
    device: DeviceInfo,
    budget: Budget,
    found: Found | None = None,
    *,
    prior: Prior | None = None,
    rescues: Callable[[], Iterable[Knobs]] = tuple,
    tune: Callable[[Sequence[Plan], int], Tuned | None] = lambda plans, limit_bytes: None,
) -> Found:
    """Search, solve, tune and confirm; give the plans, best first. Raise where there is none.

    `prior` is what a rehearsal foresaw; `rescues` are knobs to search with where nothing fits without; `tune` orders
    what fits by measured speed.
    """
    found = Found() if found is None else found
    lab.warn(*shared_by_ranks(request.world_size))
    ranked_plans = _search(request, lab, device, budget, found, prior, rescues)
    limit_bytes = training_limit(device, budget)
    lab.as_in_training(limit_bytes)
    tuned = tune(ranked_plans, limit_bytes) if ranked_plans else None
    found.plans = _confirmed(ranked_plans, tuned, lab, device, budget)
    if not found.plans:
        raise no_plan(lab.samples, device, budget, lab.model)
    if found.tuning is not None:
        found.tuning = found.tuning.credited(found.plans[0])
    largest_ok = search.accumulating(found.samples(lab.samples)).largest_ok or 0
    if found.plans[0].accumulation_steps > 1:
        lab.warn(*lab.couplings(largest_ok))
    if request.split == "even":
        lab.warn(*many_steps(found.plans[0], largest_ok))
    return found


def _search(
    request: Request,
    lab: Lab,
    device: DeviceInfo,
    budget: Budget,
    found: Found,
    prior: Prior | None,
    rescues: Callable[[], Iterable[Knobs]],
) -> list[Plan]:
    """Give the plans that fit, ranked; with knobs that save memory where there are none without."""
    found.certificate = run_search(request, lab, device, budget, prior=prior)
    plans = ranked(request, lab, budget)
    if plans:
        return plans
    first = no_plan(lab.samples, device, budget, lab.model)
    for knobs in rescues() if isinstance(first, NothingFits) else ():
        try:
            found.certificate = run_search(request, lab, device, budget, knobs)
        except WorkloadError as error:
            lab.warn(f"{', '.join(words(knobs))} cannot be used here: {error}")
            continue
        plans = ranked(request, lab, budget, knobs)
        if plans:
            found.ground = knobs
            lab.warn(rescued(knobs, plans))
            return plans
    return []


def _confirmed(
    plans: Sequence[Plan], tuned: Tuned | None, lab: Lab, device: DeviceInfo, budget: Budget
) -> Sequence[Plan]:
    if tuned is not None and tuned.measured:
        tries = tuned.measured[:_TUNED_TRIES]
        index, best = first_that_runs(tries, lab, device, budget)
        if best is not None:
            return [best, *tuned.measured[index + 1 :], *tuned.others]
    return confirm(plans, lab, device, budget)


def run_search(
    request: Request,
    lab: Lab,
    device: DeviceInfo,
    budget: Budget,
    knobs: Knobs = PLAIN,
    strategy: search.Strategy = search.fewest_trials,
    prior: Prior | None = None,
) -> Certificate | None:
    """Run what the strategy asks for until it has seen enough; give what its end rests on, None if nothing ran."""
    rank_batch = rank_share(request.target_batch, request.world_size)
    while True:
        goal = search.Goal(
            rank_batch=rank_batch,
            candidates=candidates(rank_batch, request.split),
            limit_bytes=budget.limit_bytes,
            find_max=request.find_max,
            fresh=not device.repeatable,
            meter_error_bytes=0 if device.repeatable else _METER_ERROR,
            gradient_bytes=lab.gradient_bytes,
            prior=prior,
        )
        trial = strategy(with_knobs(lab.samples, knobs), goal)
        if trial is None:
            break
        try:
            lab.run(replace(trial, knobs=knobs))
        except WorkloadError:
            # BatchNorm refuses a single sample; where two did not fit, that is no news.
            if trial.micro_batch > 1 or search.bracket(with_knobs(lab.samples, knobs)).smallest_failed is None:
                raise
            break
    return search.certificate(with_knobs(lab.samples, knobs), goal)


def ranked(request: Request, lab: Lab, budget: Budget, knobs: Knobs = PLAIN) -> list[Plan]:
    """Give every plan whose micro-batch ran, or lies below one that did, best first."""
    samples = with_knobs(lab.samples, knobs)
    largest = search.accumulating(samples).largest_ok or 0
    ran = {s.micro_batch for s in samples if s.ok}
    failed = {s.micro_batch for s in samples if not s.ok} - ran
    whole = rank_share(request.target_batch, request.world_size)
    known = Known(samples=samples, memory=fit_memory(samples), time=fit_time(samples), budget=budget)

    def fits(size: int) -> bool:
        return size in ran if size == whole else size <= largest and size not in failed

    plans = solve(request.target_batch, request.world_size, request.split, fits, known)
    return [replace(plan, options=knobs.options) for plan in plans]


def with_knobs(samples: Sequence[Sample], knobs: Knobs) -> list[Sample]:
    """Give the samples of trials with just these knobs."""
    return [sample for sample in samples if sample.options == knobs.options]

"""The straight line: workload -> probe -> fit -> solve -> confirm -> report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from autoaccum import device as devices
from autoaccum import search
from autoaccum.advice import no_plan
from autoaccum.confirm import confirm
from autoaccum.errors import AutoaccumError, Interrupted, NothingFits, UsageError, WorkloadError
from autoaccum.fit import fit_memory, fit_time
from autoaccum.isolate import Echo, WorkerSpec
from autoaccum.lab import Lab, Watcher
from autoaccum.records import Budget, DeviceInfo, Outcome, Plan, Report, Request, Sample, Status, Trial
from autoaccum.report import files
from autoaccum.solve import SPLITS, Known, candidates, rank_share, shortlist, solve
from autoaccum.units import parse_budget
from autoaccum.workload import check_syntax, split_spec


class Silent:
    """A watcher that looks away; the base of those that don't."""

    def opened(self, device: DeviceInfo, budget: Budget) -> None:
        """Ignore it."""

    def trial_started(self, trial: Trial, at_most: int | None) -> None:
        """Ignore it."""

    def trial_finished(self, sample: Sample) -> None:
        """Ignore it."""


def probe(
    workload: str | os.PathLike[str],
    *,
    target_batch: int,
    memory_budget: str | None = None,
    device: str = "auto",
    world_size: int = 1,
    split: str = "auto",
    find_max: bool = False,
    seed: int = 0,
    timeout: float = 600.0,
    out: str | os.PathLike[str] | None = None,
) -> Report:
    """Find the plan for "FILE.py[:NAME]" in a process of its own; with `out`, write a run folder there.

    >>> report = autoaccum.probe("model.py", target_batch=512, memory_budget="20GiB")
    >>> report.plan.micro_batch, report.plan.accumulation_steps
    (64, 8)
    """
    request = Request(
        workload=os.fspath(workload),
        target_batch=target_batch,
        memory_budget=memory_budget,
        device=device,
        world_size=world_size,
        split=split,
        find_max=find_max,
        seed=seed,
        timeout=timeout,
    )
    report, _ = run(request, out=None if out is None else Path(out))
    return report


def run(
    request: Request, *, out: Path | None, watcher: Watcher | None = None, echo: Echo | None = None
) -> tuple[Report, Path | None]:
    """Answer `request`; give the report and the run folder. An error carries the report so far, also written."""
    check(request)
    folder = None if out is None else files.new_folder(out, request.workload, datetime.now().date())
    try:
        report = _answer(request, watcher or Silent(), echo)
    except (AutoaccumError, Interrupted) as error:
        if folder is not None and error.report is not None:
            files.write(error.report, folder)
            error.folder = folder
        elif folder is not None:
            folder.rmdir()
        raise
    if folder is not None:
        files.write(report, folder)
    return report, folder


def check(request: Request) -> None:
    """Raise for whatever can be seen to be wrong before anything is started."""
    for name, value in (("--target-batch", request.target_batch), ("--world-size", request.world_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{name} must be a whole number of 1 or more, not {value}")
    if request.split not in SPLITS:
        raise UsageError(f'unknown split "{request.split}": use auto, even or uneven')
    if request.timeout <= 0:
        raise UsageError(f"--timeout must be above 0 seconds, not {request.timeout:g}")
    rank_share(request.target_batch, request.world_size)
    devices.check_name(request.device)
    if request.memory_budget is not None:
        parse_budget(request.memory_budget, total_bytes=1 << 40)
    check_syntax(split_spec(request.workload)[0])


def _answer(request: Request, watcher: Watcher, echo: Echo | None) -> Report:
    spec = WorkerSpec(
        device=request.device, workload=request.workload, memory_budget=request.memory_budget, seed=request.seed
    )
    with Lab(spec, timeout_seconds=request.timeout, watcher=watcher, echo=echo) as lab:
        try:
            device, budget = lab.open()
            _search(request, lab, device)
            plans = confirm(_plans(request, lab, budget), lab, device, budget)
            if not plans:
                raise no_plan(lab.samples, device, budget, lab.model)
        except AutoaccumError as error:
            if lab.ready is not None:
                error.report = _report(request, lab, (), _status(error))
            raise
        except KeyboardInterrupt:
            raise Interrupted(_report(request, lab, (), Status.INTERRUPTED)) from None
        return _report(request, lab, plans, Status.PLANNED)


def _search(
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
        sample = lab.run(trial, None if remaining is None else remaining + 1)  # the confirming trial follows
        _raise_if_failed(sample)


def _plans(request: Request, lab: Lab, budget: Budget) -> list[Plan]:
    """Give every plan whose micro-batch ran, or lies below one that did, best first."""
    largest = search.bracket(lab.samples).largest_ok or 0
    failed = {s.micro_batch for s in lab.samples if not s.ok} - {s.micro_batch for s in lab.samples if s.ok}
    known = Known(samples=lab.samples, memory=fit_memory(lab.samples), time=fit_time(lab.samples), budget=budget)
    return solve(
        request.target_batch,
        request.world_size,
        request.split,
        lambda size: size <= largest and size not in failed,
        known,
    )


def _raise_if_failed(sample: Sample) -> None:
    if sample.outcome is Outcome.FAILED:
        raise WorkloadError(f"{sample.message} (micro-batch {sample.micro_batch})", details=sample.details)


def _status(error: AutoaccumError) -> Status:
    return Status.NOTHING_FITS if isinstance(error, NothingFits) else Status.FAILED


def _report(request: Request, lab: Lab, plans: Sequence[Plan], status: Status) -> Report:
    return Report(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        status=status,
        environment={} if lab.ready is None else lab.ready.environment,
        device=None if lab.ready is None else lab.ready.device,
        budget=None if lab.ready is None else lab.ready.budget,
        workload=request.workload,
        model=lab.model,
        target_batch=request.target_batch,
        world_size=request.world_size,
        samples=tuple(lab.samples),
        bracket=search.bracket(lab.samples),
        memory_model=fit_memory(lab.samples),
        plan=plans[0] if plans else None,
        plans=shortlist(plans),
        warnings=tuple(lab.warnings),
    )

"""The straight line: workload -> probe -> fit -> solve -> confirm -> report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from autoaccum import device as devices
from autoaccum import search
from autoaccum.errors import Interrupted, NothingFits, UsageError
from autoaccum.fit import fit_memory
from autoaccum.interrupts import undisturbed
from autoaccum.isolate import WorkerSpec
from autoaccum.lab import Watcher, WorkerLab
from autoaccum.pipes import Echo
from autoaccum.planning import find_plans
from autoaccum.plans import Plan, rank_share
from autoaccum.recipe import advice, low_precision
from autoaccum.records import Budget, DeviceInfo, Request, Sample, Trial
from autoaccum.report import files
from autoaccum.report.record import Report, Status
from autoaccum.solve import SPLITS, shortlist
from autoaccum.units import parse_budget
from autoaccum.workload import check_syntax, split_spec

if TYPE_CHECKING:
    import torch


class Silent:
    """A watcher that looks away."""

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
    memory_budget: str | int | None = None,
    device: str | torch.device = "auto",
    world_size: int = 1,
    reference_batch: int | None = None,
    split: str = "auto",
    find_max: bool = False,
    seed: int = 0,
    timeout: float = 600.0,
    out: str | os.PathLike[str] | None = None,
) -> Report:
    """Find the plan for "FILE.py[:NAME]" in a process of its own; with `out`, write a run folder there.

    The budget is a size ("20GiB"), a share of the device ("80%") or a number of bytes.

    >>> report = autoaccum.probe("model.py", target_batch=512, memory_budget="20GiB")
    >>> report.plan.micro_batch, report.plan.accumulation_steps
    (64, 8)
    """
    if not isinstance(workload, str | os.PathLike):
        raise UsageError('give the workload as a file, "FILE.py" or "FILE.py:NAME": it is built in another process')
    request = Request(
        workload=os.fspath(workload),
        target_batch=target_batch,
        memory_budget=f"{memory_budget}B" if isinstance(memory_budget, int) else memory_budget,
        device=str(device),
        world_size=world_size,
        reference_batch=reference_batch,
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
    except BaseException as error:
        partial: Report | None = getattr(error, "report", None)
        if folder is not None and partial is not None:
            with undisturbed():
                files.write(partial, folder)
            error.folder = folder  # type: ignore[attr-defined]
        elif folder is not None:
            folder.rmdir()
        raise
    if folder is not None:
        with undisturbed():
            files.write(report, folder)
    return report, folder


def check(request: Request) -> None:
    """Raise for whatever can be seen to be wrong before anything is started."""
    numbers = {"--target-batch": request.target_batch, "--world-size": request.world_size}
    if request.reference_batch is not None:
        numbers["--reference-batch"] = request.reference_batch
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{name} must be a whole number of 1 or more, not {value!r}")
    if request.split not in SPLITS:
        raise UsageError(f'unknown split "{request.split}": use auto, even or uneven')
    if isinstance(request.timeout, str) or not 0 < request.timeout < float("inf"):
        raise UsageError(f"--timeout must be a number of seconds above 0, not {request.timeout}")
    if not 0 <= request.seed < 2**63:
        raise UsageError(f"--seed must be between 0 and 2**63 - 1, not {request.seed}")
    rank_share(request.target_batch, request.world_size)
    devices.check_name(request.device)
    if request.memory_budget is not None:
        parse_budget(request.memory_budget, total_bytes=1 << 40)
    check_syntax(split_spec(request.workload)[0])


def _answer(request: Request, watcher: Watcher, echo: Echo | None) -> Report:
    """Walk the line; whatever ends it early carries the report so far."""
    spec = WorkerSpec(
        device=request.device, workload=request.workload, memory_budget=request.memory_budget, seed=request.seed
    )
    lab = WorkerLab(spec, timeout_seconds=request.timeout, watcher=watcher, echo=echo)
    plans: Sequence[Plan] = ()
    try:
        with lab:
            device, budget = lab.open()
            plans = find_plans(request, lab, device, budget)
            lab.warn(*low_precision(plans[0], lab.model))
    except KeyboardInterrupt:
        raise Interrupted(_report(request, lab, plans, Status.INTERRUPTED)) from None
    except NothingFits as error:
        error.report = _report(request, lab, plans, Status.NOTHING_FITS)
        raise
    except Exception as error:
        if lab.ready is not None:
            error.report = _report(request, lab, plans, Status.FAILED)  # type: ignore[attr-defined]
        raise
    return _report(request, lab, plans, Status.PLANNED)


def _report(request: Request, lab: WorkerLab, plans: Sequence[Plan], status: Status) -> Report:
    memory = fit_memory(lab.samples)
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
        memory_model=memory,
        plan=plans[0] if plans else None,
        plans=shortlist(plans),
        warnings=tuple(lab.warnings),
        advice=tuple(advice(plans[0], lab.model, memory, request.reference_batch)) if plans else (),
    )

"""The straight line: workload -> search -> fit -> solve -> tune -> confirm -> report."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from autoaccum.checks import check
from autoaccum.errors import UsageError
from autoaccum.pipes import Echo
from autoaccum.records import Request
from autoaccum.rehearsal.prior import Rehearse, predicted
from autoaccum.report import files
from autoaccum.report.record import Report, Status
from autoaccum.running import Run
from autoaccum.tuning.results import shown
from autoaccum.watching import Silent, Watcher

if TYPE_CHECKING:
    import torch

TUNE_TRIALS, TUNE_SECONDS = 16, 60.0


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
    tune_trials: int = TUNE_TRIALS,
    tune_seconds: float = TUNE_SECONDS,
    allow: str | Iterable[str] | None = None,
    objective: str = "throughput",
    storage: str | None = None,
    seed: int = 0,
    timeout: float = 600.0,
    snapshot: str | os.PathLike[str] | None = None,
    rehearse: bool = True,
    out: str | os.PathLike[str] | None = None,
) -> Report:
    """Find the plan for "FILE.py[:NAME]" in a process of its own; with `out`, write a run folder there.

    The budget is a size ("20GiB"), a share of the device ("80%") or a number of bytes. `allow` gives leave for knobs
    that change more than sizes ("bf16,checkpoint"); `tune_trials=0` takes the search's word for the speed; `snapshot`
    is a file for pytorch.org/memory_viz, where the device is a GPU.

    >>> report = autoaccum.probe("model.py", target_batch=512, memory_budget="20GiB")
    >>> report.plan.micro_batch, report.plan.accumulation_steps
    (64, 8)
    """
    if not (allow is None or isinstance(allow, Iterable)):
        raise UsageError(f'allow must be names such as "bf16,checkpoint", or a list of them, not {allow!r}')
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
        tune_trials=tune_trials,
        tune_seconds=tune_seconds,
        allow=allow if allow is None or isinstance(allow, str) else ",".join(allow) or "none",
        objective=objective,
        storage=storage,
        seed=seed,
        timeout=timeout,
        snapshot=None if snapshot is None else os.fspath(snapshot),
        rehearse=rehearse,
    )
    report, _ = run(request, out=None if out is None else Path(out))
    return report


def run(
    request: Request,
    *,
    out: Path | None,
    watcher: Watcher | None = None,
    echo: Echo | None = None,
    rehearse: Rehearse = predicted,
) -> tuple[Report, Path | None]:
    """Answer `request`; give the report and the run folder. An error carries the report so far, also written.

    `rehearse` says which micro-batch is predicted to fit a real GPU; the search starts there.
    """
    request = check(request)
    folder = None if out is None else files.new_folder(out, request.workload, datetime.now().date())
    return Run(request, folder, watcher or Silent(), echo, rehearse=rehearse).finish(), folder


def resume(
    folder: Path,
    *,
    tune_trials: int | None = None,
    tune_seconds: float | None = None,
    storage: str | None = None,
    snapshot: str | None = None,
    watcher: Watcher | None = None,
    echo: Echo | None = None,
) -> tuple[Report, Path]:
    """Go on with the run in `folder`, whatever ended it: trials that are behind it are not repeated."""
    before = files.read(folder)
    if before.request is None:
        raise UsageError(f"{folder} is of an older version of autoaccum and cannot be continued: probe again")
    started_in, kept = Path(before.request.started_in), before.request.snapshot
    asked = replace(
        before.request,
        workload=str(started_in / before.request.workload),
        snapshot=str(started_in / kept) if snapshot is None and kept is not None else snapshot,
        tune_trials=before.request.tune_trials if tune_trials is None else tune_trials,
        tune_seconds=before.request.tune_seconds if tune_seconds is None else tune_seconds,
        storage=before.request.storage if storage is None else storage,
    )
    if asked.storage is not None and asked.storage == shown(asked.storage) and "://...@" in asked.storage:
        raise UsageError(f"the password of {asked.storage} was not kept: give --storage again beside --resume")
    request = check(asked)
    if request.workload_digest != before.request.workload_digest:
        raise UsageError(f"{request.workload} has changed since the run in {folder}: probe again")
    if before.status is Status.PLANNED and tune_trials is None and tune_seconds is None:
        more = "to tune further, give --tune-trials or --tune-seconds"
        raise UsageError(f"the run in {folder} is finished: autoaccum show {folder} shows it; {more}")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder} cannot be written, and a run is continued where it is: copy it elsewhere")
    return Run(request, folder, watcher or Silent(), echo, before).finish(), folder

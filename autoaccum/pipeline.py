"""The straight line: workload -> search -> fit -> solve -> tune -> confirm -> report."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from autoaccum import search
from autoaccum.checks import check
from autoaccum.errors import DeviceError, Interrupted, NothingFits, UsageError
from autoaccum.fit import fit_memory
from autoaccum.interrupts import undisturbed
from autoaccum.isolate import WorkerSpec
from autoaccum.knobs.names import ALLOWED
from autoaccum.lab import WorkerLab
from autoaccum.pipes import Echo
from autoaccum.planning import Found, find_plans
from autoaccum.plans import Plan
from autoaccum.recipe import advice, low_precision
from autoaccum.records import Budget, DeviceInfo, Knobs, Outcome, Request
from autoaccum.report import files
from autoaccum.report.record import Report, Status
from autoaccum.solve import shortlist
from autoaccum.tuning.costs import prices
from autoaccum.tuning.results import Tuned, shown
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
    out: str | os.PathLike[str] | None = None,
) -> Report:
    """Find the plan for "FILE.py[:NAME]" in a process of its own; with `out`, write a run folder there.

    The budget is a size ("20GiB"), a share of the device ("80%") or a number of bytes. `allow` gives leave for knobs
    that change more than sizes ("bf16,checkpoint"); `tune_trials=0` takes the search's word for the speed.

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
    )
    report, _ = run(request, out=None if out is None else Path(out))
    return report


def run(
    request: Request, *, out: Path | None, watcher: Watcher | None = None, echo: Echo | None = None
) -> tuple[Report, Path | None]:
    """Answer `request`; give the report and the run folder. An error carries the report so far, also written."""
    request = check(request)
    folder = None if out is None else files.new_folder(out, request.workload, datetime.now().date())
    return _Run(request, folder, watcher or Silent(), echo).finish(), folder


def resume(
    folder: Path,
    *,
    tune_trials: int | None = None,
    tune_seconds: float | None = None,
    storage: str | None = None,
    watcher: Watcher | None = None,
    echo: Echo | None = None,
) -> tuple[Report, Path]:
    """Go on with the run in `folder`, whatever ended it: trials that are behind it are not repeated."""
    before = files.read(folder)
    if before.request is None:
        raise UsageError(f"{folder} is of an older version of autoaccum and cannot be continued: probe again")
    asked = replace(
        before.request,
        workload=str(Path(before.request.started_in) / before.request.workload),
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
    return _Run(request, folder, watcher or Silent(), echo, before).finish(), folder


class _Run:
    """One walk along the line, and what is known at each point of it."""

    def __init__(
        self, request: Request, folder: Path | None, watcher: Watcher, echo: Echo | None, before: Report | None = None
    ) -> None:
        self._request = request
        self._folder = folder
        self._before = before
        self._watcher = watcher
        self._found = Found()
        spec = WorkerSpec(
            device=request.device, workload=request.workload, memory_budget=request.memory_budget, seed=request.seed
        )
        self._lab = WorkerLab(spec, timeout_seconds=request.timeout, watcher=watcher, echo=echo, keep=self._save)
        if before is not None and before.device is not None and before.budget is not None:
            # Trials that failed are tried again, and the plan is confirmed anew.
            kept = [s for s in before.samples if s.outcome is not Outcome.FAILED and s.phase != "confirm"]
            self._lab.take_up(before.device, before.budget, kept)

    def finish(self) -> Report:
        """Walk to the end, and write what was found, however it ends."""
        try:
            report = self._answer()
        except BaseException as error:
            partial: Report | None = getattr(error, "report", None)
            if self._folder is not None and partial is not None:
                self._write_beside(error, partial, self._folder)
            elif self._folder is not None and self._before is None:
                files.remove(self._folder)
            raise
        if self._folder is not None:
            try:
                with undisturbed():
                    files.write(report, self._folder)
            except Exception as error:
                error.report = report  # type: ignore[attr-defined]  # the answer is not lost with the disk
                raise
        return report

    @staticmethod
    def _write_beside(error: BaseException, partial: Report, folder: Path) -> None:
        """Write what an error carries; where that fails too, the error stays the one to tell of."""
        try:
            with undisturbed():
                files.write(partial, folder)
            error.folder = folder  # type: ignore[attr-defined]
        except Exception as full:
            error.report = replace(partial, warnings=(*partial.warnings, str(full)))  # type: ignore[attr-defined]

    def _answer(self) -> Report:
        """Walk the line; whatever ends it early carries the report so far."""
        lab = self._lab
        try:
            with lab:
                device, budget = self._opened()
                find_plans(self._request, lab, device, budget, self._found, rescues=self._rescues, tune=self._tune)
                lab.warn(*low_precision(self._found.plans[0], lab.model))
        except KeyboardInterrupt:
            raise Interrupted(self._report(Status.INTERRUPTED)) from None
        except NothingFits as error:
            error.report = self._report(Status.NOTHING_FITS)
            raise
        except Exception as error:
            if lab.ready is not None:
                error.report = self._report(Status.FAILED)  # type: ignore[attr-defined]
            raise
        return self._report(Status.PLANNED)

    @property
    def _tunes(self) -> bool:
        return bool(self._request.tune_trials and self._request.tune_seconds)

    def _opened(self) -> tuple[DeviceInfo, Budget]:
        """Open the device, and see that it can be tuned as asked before any trial is run."""
        if self._tunes and self._request.storage is not None:
            from autoaccum.tuning.storage import open_storage

            open_storage(self._request.storage, self._folder)
        device, budget = self._lab.open()
        ready = self._lab.ready
        if self._tunes and self._request.objective == "energy" and ready is not None and ready.energy_source is None:
            raise DeviceError(f"{device.name} does not tell what energy it uses: use --objective throughput")
        return device, budget

    def _rescues(self) -> Iterable[Knobs]:
        from autoaccum.tuning.session import rescues

        unsupported = self._lab.unsupported()
        return () if unsupported is None else rescues(self._request.allow, unsupported)

    def _tune(self, plans: Sequence[Plan], limit_bytes: int) -> Tuned | None:
        ready = self._lab.ready
        if ready is None or ready.budget is None or not ready.timed or not self._tunes:
            return None
        unsupported = self._lab.unsupported()
        if unsupported is None:
            unsupported = dict.fromkeys(ALLOWED, "the worker was lost over the question")
        from autoaccum.tuning import session  # with Optuna

        tuning = session.Session(
            request=self._request,
            lab=self._lab,
            device=ready.device,
            budget=ready.budget,
            limit_bytes=limit_bytes,
            unsupported=unsupported,
            folder=self._folder,
            resumed=self._before is not None,
            watcher=self._watcher,
        )
        try:
            return tuning.run(plans)
        except OSError as error:  # the journal's, where the disk is full: what the search found stands
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            self._lab.warn(f"tuning ended early, its study cannot be written: {error.strerror or error}")
            return None
        finally:
            self._found.tuning = tuning.results()

    def _save(self) -> None:
        """Keep what is known now, so that a run that is killed can be continued."""
        if self._folder is not None:
            try:
                files.write_json(self._report(Status.RUNNING), self._folder)
            except UsageError as error:  # a full disk may have room again at the end, and trials are dear
                self._lab.warn(f"a trial was not kept: {error}")

    def _report(self, status: Status) -> Report:
        lab, plans, request = self._lab, self._found.plans, self._request
        samples = self._found.samples(lab.samples)
        memory = fit_memory(samples)
        bracket = search.bracket(samples)
        said = advice(plans[0], lab.model, memory, request.reference_batch, bracket.largest_ok) if plans else []
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
            bracket=bracket,
            memory_model=memory,
            plan=plans[0] if plans else None,
            plans=shortlist(plans),
            tuning=self._found.tuning,
            warnings=tuple(lab.warnings),
            advice=(*said, *(prices(plans[0], self._found.tuning, lab.samples) if plans else ())),
            request=replace(request, storage=shown(request.storage)),
            folder=self._folder,
        )

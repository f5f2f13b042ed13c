"""One walk along the line, from the opened device to the written report; whatever ends it early loses nothing."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from autoaccum import search
from autoaccum.anatomy.record import Anatomy
from autoaccum.confirm import confirming
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
from autoaccum.rehearsal.constants import remember
from autoaccum.rehearsal.prior import Rehearse, predicted, prior
from autoaccum.report import files
from autoaccum.report.record import Report, Status
from autoaccum.solve import shortlist
from autoaccum.tuning.costs import prices
from autoaccum.tuning.results import Tuned, shown
from autoaccum.watching import Watcher


class Run:
    """One walk along the line, and what is known at each point of it."""

    def __init__(
        self,
        request: Request,
        folder: Path | None,
        watcher: Watcher,
        echo: Echo | None,
        before: Report | None = None,
        rehearse: Rehearse = predicted,
    ) -> None:
        self._request = request
        self._folder = folder
        self._before = before
        self._rehearse = rehearse
        self._prior = None if before is None else before.prior
        self._watcher = watcher
        self._found = Found()
        self._anatomy: Anatomy | None = None
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
                self._find_plans(device, budget)
                lab.warn(*low_precision(self._found.plans[0], lab.model))
                remember(device, lab.samples, lab.ready.environment if lab.ready else {})
                self._dissect(device)
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

    def _find_plans(self, device: DeviceInfo, budget: Budget) -> None:
        """Walk from search to confirmation; a run that is continued has been rehearsed, if at all."""
        request, lab, found = self._request, self._lab, self._found
        if self._before is None:
            self._prior = prior(request, device, budget, self._rehearse)
        find_plans(request, lab, device, budget, found, prior=self._prior, rescues=self._rescues, tune=self._tune)

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
        if self._request.snapshot is not None and device.kind == "cpu":
            raise DeviceError("--snapshot is the history of a GPU's allocator: leave it out on the CPU")
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

    def _dissect(self, device: DeviceInfo) -> None:
        """See where the plan's memory goes, where an allocator tells of it."""
        if device.kind != "cpu":
            trial = replace(confirming(self._found.plans[0], device), whole_updates=0, fresh=False)
            path = self._request.snapshot
            self._anatomy = self._lab.dissect(trial, None if path is None else Path(path))

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
            certificate=self._found.certificate,
            memory_model=memory,
            plan=plans[0] if plans else None,
            plans=shortlist(plans),
            anatomy=self._anatomy,
            tuning=self._found.tuning,
            warnings=tuple(lab.warnings),
            advice=(*said, *(prices(plans[0], self._found.tuning, lab.samples) if plans else ())),
            request=replace(request, storage=shown(request.storage)),
            prior=self._prior,
            folder=self._folder,
        )

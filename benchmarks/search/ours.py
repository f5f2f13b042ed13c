"""autoaccum on the same cases: the pipeline of `autoaccum probe`, its workers forked, without and with a rehearsal."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoaccum import pipeline
from autoaccum.errors import AutoaccumError
from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.records import Budget, DeviceInfo, Outcome, Prior, Request, Sample, Trial
from autoaccum.rehearsal.prior import Rehearse, predicted
from autoaccum.report.record import Report
from autoaccum.virtual.build import cache_folder
from autoaccum.watching import Silent
from benchmarks.search.cases import ALLOCATOR, Case
from benchmarks.search.forks import Row
from benchmarks.search.tasks import Task
from benchmarks.search.workers import forked

IMPORTS = (
    "benchmarks.search.ours",
    "autoaccum.subject",
    "autoaccum.trial",
    "torch._dynamo",
    "language",
    "vision",
    "other",
)
PLAIN, REHEARSED = "autoaccum", "autoaccum, rehearsed"
_TOO_LARGE = (Outcome.OOM, Outcome.KILLED, Outcome.TIMED_OUT)


def task(case: Case, tool: str) -> Task:
    """Give the task of a case, without or with a rehearsal."""
    given = {
        "spec": case.model.spec,
        "target": case.target,
        "rehearsed": tool == REHEARSED,
        "told_capability": case.card.told_capability,
        "told_multiprocessors": case.card.told_multiprocessors,
    }
    return Task(key=f"{case.name}/{tool}", do="benchmarks.search.ours.search", given=given, variables=case.variables)


def search(spec: str, target: int, rehearsed: bool, told_capability: str, told_multiprocessors: int) -> Row:
    """Probe the GPU that the environment describes; the rehearsal is told something else of it."""
    seconds = 0.0

    def rehearse(request: Request, device: DeviceInfo, budget: Budget) -> Prior:
        nonlocal seconds
        began = time.monotonic()
        with _without(ALLOCATOR):
            told = replace(device, capability=told_capability, multiprocessors=told_multiprocessors)
            found = predicted(request, told, budget)
        seconds = time.monotonic() - began
        return found

    request = Request(workload=spec, target_batch=target, device="cuda", split="uneven", rehearse=rehearsed)
    with _own_cache(), forked():
        return {**_probe(request, rehearse), "rehearsal_seconds": round(seconds, 3)}


def on_cpu(spec: str, target: int, room_bytes: int) -> Row:
    """Probe the CPU, where the process may take so much beyond what it holds before there is a model."""
    with forked():
        with Worker(WorkerSpec(device="cpu"), timeout_seconds=120.0) as worker:
            budget = f"{worker.ready.device.overhead_bytes + room_bytes}B"
        request = Request(workload=spec, target_batch=target, device="cpu", split="uneven", memory_budget=budget)
        return _probe(request, predicted)


class _Book(Silent):
    """Counts what was made in trials that ran to their end."""

    def __init__(self) -> None:
        self.optimizer_steps = 0
        self.samples = 0
        self._trial: Trial | None = None

    def trial_started(self, trial: Trial) -> None:
        """Note what is asked for."""
        self._trial = trial

    def trial_finished(self, sample: Sample) -> None:
        """Count what was made."""
        trial = self._trial
        if trial is not None and sample.ok:
            self.optimizer_steps += trial.updates + trial.whole_updates
            self.samples += trial.updates * sum(trial.sizes) + trial.whole_updates * sum(trial.micro_batches)


def _probe(request: Request, rehearse: Rehearse) -> Row:
    book, message = _Book(), ""
    try:
        report, _ = pipeline.run(request, out=None, watcher=book, rehearse=rehearse)
    except AutoaccumError as error:
        so_far: Report | None = getattr(error, "report", None)
        if so_far is None:
            raise
        report, message = so_far, f"{type(error).__name__}: {error}"[:300]
    return {**_counts(report), "optimizer_steps": book.optimizer_steps, "samples": book.samples, "error": message}


def _counts(report: Report) -> Row:
    searched = [sample for sample in report.samples if sample.phase != "confirm"]
    confirming = [sample for sample in report.samples if sample.phase == "confirm"]
    size = None if report.plan is None else report.plan.micro_batch
    return {
        "size": size,
        "steps": None if report.plan is None else report.plan.accumulation_steps,
        "effective": None if report.plan is None else report.plan.effective_batch,
        "trials": len(searched),
        "ooms": sum(sample.outcome in _TOO_LARGE for sample in searched),
        "confirming": len(confirming),
        "confirming_ooms": sum(sample.outcome in _TOO_LARGE for sample in confirming),
        "ran": any(sample.ok and sample.micro_batch == size for sample in report.samples),
        "holds": any(sample.ok and sample.micro_batch == size for sample in confirming),
        "tried": [_words(sample) for sample in report.samples],
        "limit_bytes": None if report.budget is None else report.budget.limit_bytes,
        "prior": None if report.prior is None else report.prior.words,
        "retries": max((sample.alloc_retries or 0 for sample in confirming), default=None),
        "certificate": None if report.certificate is None else report.certificate.basis,
    }


def _words(sample: Sample) -> str:
    alone = " alone" if sample.accumulation_steps == 1 else ""
    return f"{sample.micro_batch}{alone} {sample.phase} {sample.outcome}"


@contextmanager
def _own_cache() -> Iterator[None]:
    """Have what probes remember in a folder of its own, so that each probe is the first on its card."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "virtual").symlink_to(cache_folder())
        with _set("AUTOACCUM_CACHE", folder):
            yield


@contextmanager
def _set(variable: str, value: str) -> Iterator[None]:
    before: Any = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _without(variable: str) -> Any:
    return _set(variable, "")

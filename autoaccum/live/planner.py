"""Probing in the user's own process, with live objects that are afterwards as they were, bit for bit."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from autoaccum.device.base import budget_for
from autoaccum.device.live import LiveDevice, open_live
from autoaccum.equivalence.couplings import warnings_for
from autoaccum.errors import AutoaccumError, AutoaccumWarning, UsageError, WorkloadError
from autoaccum.fit import fit_memory
from autoaccum.interrupts import then_restore
from autoaccum.live import cache as caches
from autoaccum.live.ambient import Ambient
from autoaccum.live.fingerprint import fingerprint
from autoaccum.live.objects import LiveSubject, Objects
from autoaccum.live.state import Snapshot, restore_all
from autoaccum.parts import model_info
from autoaccum.planning import find_plans
from autoaccum.plans import Plan, rank_share
from autoaccum.recipe import low_precision
from autoaccum.records import Evidence, ModelInfo, Outcome, Request, Sample, Trial
from autoaccum.solve import SPLITS
from autoaccum.trial import Runner
from autoaccum.units import format_bytes, parse_budget, whole_number

_LOG = logging.getLogger("autoaccum")
_REPEATED = (
    "batches were made by repeating the rows of the sample batch: where later batches have longer rows, "
    "give make_batch(size) that makes the longest"
)


def plan(
    model: torch.nn.Module,
    loss: Callable[[Any, Any], Any],
    batch: Any,
    *,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    target_batch: int,
    memory_budget: str | int | None = None,
    world_size: int = 1,
    split: str = "auto",
    cache: str | os.PathLike[str] | None = None,
) -> Plan:
    """Find the plan for live objects, on the device where the model is; afterwards all is as it was before.

    `batch` is a sample batch, whose rows are repeated, or a function make_batch(size). With `cache` the plan is kept
    in that file, and taken from it as long as nothing changed that it depends on.

    >>> plan = autoaccum.plan(model, loss, batch, optimizer=optimizer, target_batch=512, cache="plan.json")
    >>> plan.micro_batch, plan.accumulation_steps
    (64, 8)
    """
    request = _checked(
        Request(
            workload=type(model).__name__,
            target_batch=target_batch,
            memory_budget=_as_text(memory_budget),
            world_size=world_size,
            split=split,
        )
    )
    probe = _Probe(request, Objects.of(model, loss, batch, optimizer), None if cache is None else Path(cache))
    try:
        found: Plan = then_restore(probe.run, probe.restore)
    except AutoaccumError as error:
        raise _told(error) from None
    for warning in probe.warnings:
        warnings.warn(_in_python(warning), AutoaccumWarning, stacklevel=2)
    return found


class _Probe:
    """One call of `plan`: what it does, and how that is undone."""

    def __init__(self, request: Request, objects: Objects, cache: Path | None) -> None:
        self.warnings: list[str] = []
        self._request = request
        self._objects = objects
        self._cache = cache
        self._ambient = Ambient()
        self._snapshots = [Snapshot(*objects.generators())]
        self._device: LiveDevice | None = None

    def run(self, check: Callable[[], None]) -> Plan:
        """Give the plan of the cache, else the one that trials find; `check` raises after a Ctrl-C."""
        device = self._device = open_live(self._objects.device)
        info, held_bytes = device.describe(), device.held_bytes()
        budget = budget_for(device, info, self._request.memory_budget)
        key = None if self._cache is None else fingerprint(self._objects, self._request, info)
        if self._cache is not None and key is not None:
            found = caches.load(self._cache, key, self._request, budget, held_bytes)
            if isinstance(found, Plan):
                _LOG.info("plan %s, from %s", found, self._cache)
                return found
            self._warn(*found)
        self._snapshots.append(snapshot := Snapshot(*self._objects.roots()))
        torch.set_grad_enabled(True)
        subject = LiveSubject(self._objects, device, snapshot, check)
        lab = LiveLab(Runner(subject, device, budget.limit_bytes), device, subject)
        best = find_plans(self._request, lab, info, budget).plans[0]
        _LOG.info("plan %s, peak %s", best, format_bytes(best.peak_bytes or 0))
        self._warn(*([_REPEATED] if self._objects.make_batch is None else []), *device.warnings, *lab.warnings)
        self._warn(*low_precision(best, model_info(subject.parts())))
        if self._cache is not None and key is not None:
            self._warn(*caches.save(self._cache, key, best, budget, held_bytes))
        samples = tuple(lab.samples)
        evidence = Evidence(samples=samples, memory_model=fit_memory(samples), budget=budget, model=lab.model)
        return replace(best, evidence=evidence)

    def restore(self) -> None:
        """Put everything back, whatever happened."""
        # The settings first: the modes that they end would count what is copied back.
        restore_all(self._ambient.restore, *(snapshot.restore for snapshot in self._snapshots))
        if self._device is not None and len(self._snapshots) > 1:
            gc.collect()
            self._device.release()

    def _warn(self, *texts: str) -> None:
        self.warnings.extend(text for text in texts if text not in self.warnings)


class LiveLab:
    """Runs trials in this process and keeps what they showed."""

    def __init__(self, runner: Runner, device: LiveDevice, subject: LiveSubject) -> None:
        self.samples: list[Sample] = []
        self.warnings: list[str] = []
        self.model: ModelInfo | None = None  # it is part of what the process holds at the start
        self._runner = runner
        self._device = device
        self._subject = subject
        self._confirming = False

    @property
    def gradient_bytes(self) -> int:
        """Give the bytes of all gradients."""
        return model_info(self._subject.parts()).gradient_bytes

    def run(self, trial: Trial) -> Sample:
        """Run one trial; a confirming one without the count, if that takes time, once it has been counted."""
        number = len(self.samples) + 1
        slow = self._confirming and self._device.counts
        sample = self._runner.run(number, replace(trial, updates=2, whole_updates=0) if slow else trial)
        if slow and sample.ok:
            sample = self._timed(number, trial, sample)
        self.samples.append(sample)
        self.warn(*self._runner.warnings)
        _LOG.info("trial %d: %s", number, _in_words(sample))
        if sample.outcome is Outcome.FAILED:
            raise WorkloadError(f"{sample.message} (micro-batch {sample.micro_batch})", details=sample.details)
        return sample

    def as_in_training(self, limit_bytes: int) -> None:
        """Have the next trials show the time that training will take, under this limit."""
        self._runner.limit_bytes = limit_bytes
        self._confirming = True

    def couplings(self, largest_ok: int) -> Sequence[str]:
        """Look at the live objects; whatever that changes is put back with the rest."""
        parts = self._subject.parts()
        with self._device.limited(self._runner.limit_bytes):
            return warnings_for(parts.model, parts.loss, parts.make_batch, self._device, largest_ok)

    def warn(self, *warnings: str) -> None:
        """Keep what the user must be told, once."""
        self.warnings.extend(warning for warning in warnings if warning not in self.warnings)

    def _timed(self, number: int, trial: Trial, counted: Sample) -> Sample:
        self._device.counts = False
        try:
            timed = self._runner.run(number, trial)
        finally:
            self._device.counts = True
        return replace(
            timed,
            peak_allocated_bytes=counted.peak_allocated_bytes,
            peak_reserved_bytes=counted.peak_reserved_bytes,
            device_used_bytes=counted.device_used_bytes,
        )


def _checked(request: Request) -> Request:
    for name in ("target_batch", "world_size"):
        whole_number(name, getattr(request, name))
    if request.split not in SPLITS:
        raise UsageError(f'unknown split "{request.split}": use auto, even or uneven')
    rank_share(request.target_batch, request.world_size)
    if request.memory_budget is not None:
        parse_budget(request.memory_budget, total_bytes=1 << 40)
    if torch.is_inference_mode_enabled():
        raise UsageError("trials need gradients: call plan() outside of torch.inference_mode()")
    return request


def _as_text(memory_budget: Any) -> str | None:
    if memory_budget is None or isinstance(memory_budget, str):
        return memory_budget
    if isinstance(memory_budget, bool) or not isinstance(memory_budget, int):
        raise UsageError(f'memory_budget must be a size ("20GiB"), a share ("80%") or bytes, not {memory_budget!r}')
    return f"{memory_budget}B"


def _told(error: AutoaccumError) -> AutoaccumError:
    """Give the error in the words of a Python program, with the traceback of the user's code as a note."""
    error.args = (_in_python(str(error)),)
    if error.details:
        error.add_note(error.details)
    return error


def _in_python(text: str) -> str:
    # The advice is worded for the command line, and for trials in processes of their own.
    return (
        text.replace("--memory-budget", "memory_budget")
        .replace("--split uneven", 'split="uneven"')
        .replace("in a fresh process", "once more")
    )


def _in_words(sample: Sample) -> str:
    seconds = "" if sample.step_seconds is None else f", {sample.step_seconds:.4g} s an update"
    start = f"micro-batch {sample.micro_batch}, {sample.accumulation_steps} steps ({sample.phase}): {sample.outcome}"
    return f"{start}, peak {format_bytes(sample.device_used_bytes or 0)}{seconds}"

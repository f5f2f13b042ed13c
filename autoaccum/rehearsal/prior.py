"""What a rehearsal says before the first trial on a real GPU: the micro-batch to start from, and why.

A rehearsal is a help and no more. Whatever keeps it from its end is told in the report, and the search starts from
small sizes, as it does where there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from autoaccum.errors import AutoaccumError, WorkloadError
from autoaccum.plans import rank_share
from autoaccum.records import Budget, DeviceInfo, Prior, Request, Trial
from autoaccum.rehearsal.bands import band_for
from autoaccum.rehearsal.cards import Card
from autoaccum.rehearsal.constants import DEFAULT, Constant, constant_for
from autoaccum.rehearsal.fitting import Fitting
from autoaccum.rehearsal.foreseeing import foresee
from autoaccum.rehearsal.stage import Stage
from autoaccum.solve import candidates
from autoaccum.units import MIB
from autoaccum.watching import Silent

_MOST_SECONDS = 60.0  # for one size, and then for all: a rehearsal must not cost more than it saves
_LIBRARIES_BYTES = 256 * MIB  # that a process may come to hold after its context, for the code of libraries

# Says what this request will need on this device.
Rehearse = Callable[[Request, DeviceInfo, Budget], Prior]


def predicted(request: Request, device: DeviceInfo, budget: Budget) -> Prior:
    """Rehearse the request in a child that never touches the GPU, and give what it saw."""
    card = Card(
        key=device.name,
        name=device.name,
        total_bytes=device.total_bytes,
        capability=device.capability or "8.0",
        multiprocessors=device.multiprocessors or 108,
        source="this machine",
    )
    seconds = min(request.timeout, _MOST_SECONDS)
    with Stage(request.workload, card, seed=request.seed, timeout_seconds=seconds, watcher=_Impatient()) as stage:
        return foreseen(stage, card, request, device, budget)


def foreseen(stage: Stage, card: Card, request: Request, device: DeviceInfo, budget: Budget) -> Prior:
    """Give what is seen on a stage of the sizes that a plan for the request can use on the device."""
    whole = rank_share(request.target_batch, request.world_size)
    band = band_for(stage.traits(min(2, whole)))
    asked = replace(request, memory_budget=f"{budget.limit_bytes}B")
    constant = _constant(device, constant_for(device.name, stage.environment()))
    start = Fitting(card, stage, asked, band, constant=constant).largest()
    if start is None:
        return Prior(start=None, words="nothing is predicted to fit")
    return Prior(
        start=start,
        words=f"micro-batch {start} predicted to fit",
        margin=band.high,
        overhead_bytes=constant.high_bytes,
        sizes=foresee(stage, candidates(whole, request.split), budget.limit_bytes - constant.typical_bytes),
    )


class _Impatient(Silent):
    """Ends a rehearsal that takes too long, before its next size."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def trial_started(self, trial: Trial) -> None:
        """Look at the clock."""
        if time.monotonic() - self._began > _MOST_SECONDS:
            raise WorkloadError(f"it took more than {_MOST_SECONDS:g} s")


def _constant(device: DeviceInfo, known: Constant) -> Constant:
    """Give what is remembered of the card, else what the process holds before there is a model, and some more."""
    if known != DEFAULT or not device.overhead_bytes:
        return known
    held = device.overhead_bytes
    return Constant(
        typical_bytes=held, low_bytes=held, high_bytes=held + _LIBRARIES_BYTES, source="the context of this process"
    )


def prior(request: Request, device: DeviceInfo, budget: Budget, rehearse: Rehearse = predicted) -> Prior | None:
    """Give what `rehearse` predicts, in words too; None on what is no real GPU, and where none was asked for."""
    if device.kind != "cuda" or not request.rehearse:
        return None
    try:
        found = rehearse(request, device, budget)
    except Exception as error:
        name = "" if isinstance(error, AutoaccumError) else f"{type(error).__name__}: "
        message = str(error).partition("\n")[0]
        return Prior(start=None, words=f"no rehearsal: {name}{message}")
    return replace(found, words=f"rehearsed on a virtual {device.name}: {found.words}")

"""What runs in a fresh process, with autoaccum's own trials: one size under a limit, or many in turn."""

from __future__ import annotations

from collections.abc import Sequence

from autoaccum.device import open_device
from autoaccum.device.cpu import CpuDevice
from autoaccum.records import Outcome, Sample, Trial
from autoaccum.subject import FileSubject
from autoaccum.trial import Runner
from benchmarks.search.forks import Row

_UPDATES = 3


def fits(spec: str, size: int, plan: Sequence[int], limit_bytes: int) -> Row:
    """Say whether a size runs under the limit: three updates, then a whole one where it is that of a plan."""
    trial = Trial(
        micro_batch=size,
        accumulation_steps=1 if len(plan) == 1 else 2,
        micro_batches=tuple(plan),
        updates=_UPDATES,
        whole_updates=1 if len(plan) > 1 else 0,
    )
    return {"ok": _run(_runner(spec, limit_bytes), trial).ok}


def fits_on_cpu(spec: str, size: int, steps: int, room_bytes: int) -> Row:
    """Say whether a size runs on the CPU, where it may take so much beyond what the process holds now."""
    device = CpuDevice()
    runner = Runner(FileSubject(spec, device, seed=0), device, device.describe().overhead_bytes + room_bytes)
    sample = _run(runner, Trial(micro_batch=size, accumulation_steps=steps, updates=_UPDATES))
    # The kernel limits what is mapped. Pages of libraries, which others share, may lift the peak above that.
    return {"ok": sample.ok or sample.message.startswith("ran, but")}


def peaks(spec: str, sizes: Sequence[tuple[int, int]], limit_bytes: int, enough_bytes: int) -> Row:
    """Give size, micro-steps, and the peaks of allocated and reserved bytes for each, until more than enough."""
    runner = _runner(spec, limit_bytes)
    rows = []
    for size, steps in sizes:
        sample = _run(runner, Trial(micro_batch=size, accumulation_steps=steps, updates=_UPDATES, anew=True))
        rows.append((size, steps, sample.peak_allocated_bytes, sample.peak_reserved_bytes))
        if not sample.ok or (sample.peak_allocated_bytes or 0) > enough_bytes:
            break
    return {"peaks": rows}


def _runner(spec: str, limit_bytes: int) -> Runner:
    device = open_device("cuda")
    return Runner(FileSubject(spec, device, seed=0), device, limit_bytes)


def _run(runner: Runner, trial: Trial) -> Sample:
    sample = runner.run(0, trial)
    if sample.outcome not in (Outcome.OK, Outcome.OOM):
        raise RuntimeError(f"micro-batch {trial.micro_batch}: {sample.message}")
    return sample

"""Reports of made-up runs, for what is made from a report: a whole one, and runs that ended early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autoaccum.anatomy.record import Anatomy, Part
from autoaccum.fit import fit_memory
from autoaccum.plans import Plan
from autoaccum.records import Bracket, Budget, DeviceInfo, ModelInfo, Outcome, Request, Sample
from autoaccum.report.record import Report, Status
from autoaccum.tuning.results import Duel, Fate, Measurement, Tuning
from autoaccum.units import GIB, MIB

TARGET, LIMIT = 512, 20 * GIB
KNOBS: tuple[dict[str, Any], ...] = (
    {},
    {"optimizer": "fused"},
    {"precision": "bf16"},
    {"precision": "bf16", "optimizer": "fused"},
    {"checkpoint": "all"},
)


def peak(size: int) -> int:
    return 3 * GIB + 250 * MIB * size


def ran(trial: int, size: int, **more: Any) -> Sample:
    values: dict[str, Any] = {
        "trial": trial,
        "phase": "grow",
        "micro_batch": size,
        "accumulation_steps": 2,
        "outcome": Outcome.OK,
        "peak_allocated_bytes": peak(size) - 300 * MIB,
        "peak_reserved_bytes": peak(size),
        "device_used_bytes": peak(size) + 400 * MIB,
        "step_seconds": 0.02 + 0.004 * size,
        "samples_per_second": 2 * size / (0.02 + 0.004 * size),
        "alloc_retries": 0,
        "optimizer_seconds": 0.012,
        "forward_seconds": 0.001 * size,
    }
    return Sample(**{**values, **more})


def failed(trial: int, size: int, outcome: Outcome = Outcome.OOM, message: str = "out of memory") -> Sample:
    return Sample(
        trial=trial, phase="grow", micro_batch=size, accumulation_steps=2, outcome=outcome, message=message
    )  # fmt: skip


def measured(trial: int, size: int, options: dict[str, Any], **more: Any) -> Measurement:
    speed = 200 * size / (size + 8) * (1.3 if "precision" in options else 1.0) * (1.1 if "optimizer" in options else 1)
    values: dict[str, Any] = {
        "trial": trial,
        "outcome": Fate.OK,
        "micro_batch": size,
        "accumulation_steps": TARGET // size,
        "options": options,
        "update_seconds": TARGET / speed,
        "update_seconds_low": 0.99 * TARGET / speed,
        "update_seconds_high": 1.02 * TARGET / speed,
        "windows": 12,
        "samples_per_second": speed,
        "peak_bytes": int(peak(size) * (0.6 if "precision" in options else 1.0)) + 400 * MIB,
        "joules_per_sample": 120 / speed,
        "forward_seconds": 0.3 * TARGET / speed,
        "optimizer_seconds": 0.012,
        "process": "host:1",
    }
    return Measurement(**{**values, **more})


def tuning(trials: int = 16) -> Tuning:
    rows = [measured(number, 2 ** (number % 7), KNOBS[number // 7 % len(KNOBS)]) for number in range(trials)]
    rows[3] = replace(rows[3], outcome=Fate.PRUNED)
    rows.append(
        Measurement(
            trial=trials, outcome=Fate.OOM, micro_batch=128, accumulation_steps=4, message="out of memory",
        )
    )  # fmt: skip
    best = min((row for row in rows if row.outcome is Fate.OK), key=lambda row: row.update_seconds or 0)
    return Tuning(
        objective="throughput",
        study="model-512",
        storage="study.journal",
        seconds=58.0,
        seconds_allowed=60.0,
        allowed=("bf16", "checkpoint", "fused"),
        unsupported={"tf32": "no CUDA"},
        best=best.trial,
        largest=6,
        trials=tuple(rows),
        duels=(
            Duel(incumbent=6, challenger=best.trial, ratio=0.8, ratio_low=0.7, ratio_high=0.9, rounds=3,
                 winner=best.trial),
        ),
    )  # fmt: skip


def anatomy(**more: Any) -> Anatomy:
    """Where the memory of the plan below goes; twelve kinds of modules hold something, ten are named."""
    first = Part(name="blocks.*.mlp.0", kind="Linear", size_bytes=4 * GIB, count=12)
    others = [Part(name=f"blocks.*.part{n}", kind="GELU", size_bytes=GIB, count=12) for n in range(9)]
    values: dict[str, Any] = {
        "micro_batch": 64,
        "accumulation_steps": 2,
        "parameter_bytes": 4 * 10**8,
        "buffer_bytes": 0,
        "gradient_bytes": 4 * 10**8,
        "optimizer_bytes": 8 * 10**8,
        "input_bytes": 64 * MIB,
        "activation_bytes": 14 * GIB,
        "temporary_bytes": 2 * GIB,
        "cached_bytes": peak(64) - 16 * GIB - 16 * 10**8 - 64 * MIB,
        "allocated_bytes": 16 * GIB + 16 * 10**8 + 64 * MIB,
        "reserved_bytes": peak(64),
        "moment": "the forward pass, in lm_head",
        "modules": (first, *others),
    }
    return Anatomy(**{**values, **more})


def report(**more: Any) -> Report:
    """A run that went well."""
    samples = (
        *(ran(number, size) for number, size in enumerate((2, 4, 8, 16, 32, 64), start=1)),
        failed(7, 128),
        ran(8, 64, phase="confirm", accumulation_steps=8, fresh=True),
    )
    plan = Plan(
        micro_batch=64,
        accumulation_steps=8,
        micro_batches=(64,) * 8,
        world_size=1,
        effective_batch=TARGET,
        peak_bytes=samples[-1].device_used_bytes,
        headroom_bytes=LIMIT - (samples[-1].device_used_bytes or 0),
        samples_per_second=230.5,
        measured=True,
    )
    smaller = replace(plan, micro_batch=32, accumulation_steps=16, micro_batches=(32,) * 16, measured=False)
    values: dict[str, Any] = {
        "created_at": "2026-01-02T03:04:05+00:00",
        "status": Status.PLANNED,
        "environment": {"autoaccum": "0.1.0", "torch": "2.13.0", "cuda": None},
        "device": DeviceInfo(
            kind="cuda",
            name="A Card",
            uuid="GPU-1",
            total_bytes=24 * GIB,
            free_bytes=23 * GIB,
            overhead_bytes=400 * MIB,
        ),
        "budget": Budget(limit_bytes=LIMIT, reserve_bytes=0, source="user"),
        "workload": "model.py",
        "model": ModelInfo(
            name="GPT", parameters=10**8, parameter_bytes=4 * 10**8, gradient_bytes=4 * 10**8,
            gradient_dtype="float32", optimizer="AdamW", beta1=0.9, optimizer_state_bytes=8 * 10**8,
        ),
        "target_batch": TARGET,
        "world_size": 1,
        "samples": samples,
        "bracket": Bracket(largest_ok=64, smallest_failed=128),
        "memory_model": fit_memory(samples),
        "plan": plan,
        "plans": (plan, smaller),
        "tuning": None,
        "warnings": ("layer 3 (BatchNorm2d) couples the samples of a batch",),
        "advice": ("leave the learning rate as it is",),
        "request": Request(workload="model.py", target_batch=TARGET, memory_budget="20GiB"),
    }  # fmt: skip
    return Report(**{**values, **more})


def without_plan(status: Status, *samples: Sample, **more: Any) -> Report:
    """A run that ended early, with these trials."""
    largest = max((s.micro_batch for s in samples if s.ok), default=None)
    failed_sizes = [s.micro_batch for s in samples if not s.ok]
    return report(
        status=status,
        samples=samples,
        bracket=Bracket(largest_ok=largest, smallest_failed=min(failed_sizes, default=None)),
        memory_model=fit_memory(samples),
        plan=None,
        plans=(),
        advice=(),
        **more,
    )


def as_asked(sizes: dict[int, int], *, limit: int = LIMIT, **more: Any) -> Report:
    """A run that ended before its plan, in which these sizes held these bytes with accumulation."""
    samples = [
        ran(number, size, device_used_bytes=held, peak_reserved_bytes=held - 400 * MIB)
        for number, (size, held) in enumerate(sizes.items(), start=1)
    ]
    return without_plan(
        Status.INTERRUPTED, *samples, budget=Budget(limit_bytes=limit, reserve_bytes=0, source="user"), **more
    )


def in_one_step(target: int = 64, **more: Any) -> Report:
    """A run whose whole target fits without accumulation: nothing else was run in training."""
    whole = {"accumulation_steps": 1, "device_used_bytes": peak(target) + 400 * MIB - 4 * 10**8}
    samples = (
        *(ran(number, size) for number, size in enumerate((2, 4, 8, 16, 32), start=1)),
        ran(6, target, **whole),
        ran(7, target, phase="confirm", fresh=True, **whole),
    )
    plan = Plan(
        micro_batch=target,
        accumulation_steps=1,
        micro_batches=(target,),
        world_size=1,
        effective_batch=target,
        peak_bytes=samples[-1].device_used_bytes,
        headroom_bytes=LIMIT - (samples[-1].device_used_bytes or 0),
        samples_per_second=230.5,
        measured=True,
    )
    values: dict[str, Any] = {
        "samples": samples,
        "bracket": Bracket(largest_ok=target, smallest_failed=None),
        "memory_model": fit_memory(samples),
        "target_batch": target,
        "plan": plan,
        "plans": (plan,),
        "request": Request(workload="model.py", target_batch=target, memory_budget="20GiB"),
    }
    return report(**{**values, **more})


def with_knobs(options: dict[str, Any], sizes: dict[int, int], **more: Any) -> Report:
    """A run whose plan has knobs: tuned at these sizes, which held these bytes, and confirmed at the largest."""
    largest = max(sizes)
    plan = Plan.of(target_batch=TARGET, micro_batch=largest, options=options)
    rows = [measured(number, size, options, peak_bytes=held) for number, (size, held) in enumerate(sizes.items())]
    confirming = ran(
        9, largest, phase="confirm", accumulation_steps=plan.accumulation_steps, fresh=True, options=options,
        device_used_bytes=sizes[largest], peak_reserved_bytes=sizes[largest] - 400 * MIB,
    )  # fmt: skip
    whole = report()
    return replace(
        whole,
        samples=(*whole.samples[:-1], confirming),
        plan=replace(plan, peak_bytes=sizes[largest], measured=True),
        tuning=replace(tuning(), trials=tuple(rows), best=len(rows) - 1),
        **more,
    )


def on_cpu(more_in_training: float = 1.3, **more: Any) -> Report:
    """A run where the same trial has another peak in another process, and training holds more than the search saw."""
    whole = report()
    *searched, confirming = whole.samples
    held = int((peak(32) + 400 * MIB) * more_in_training)
    confirming = replace(confirming, micro_batch=32, accumulation_steps=16, device_used_bytes=held)
    assert whole.plan is not None
    assert whole.device is not None
    plan = replace(
        whole.plan, micro_batch=32, accumulation_steps=16, micro_batches=(32,) * 16, peak_bytes=held,
        headroom_bytes=LIMIT - held,
    )  # fmt: skip
    return replace(
        whole,
        device=replace(whole.device, kind="cpu", name="A Processor", repeatable=False),
        samples=(*searched, replace(failed(8, 64), phase="confirm", accumulation_steps=8), confirming),
        plan=plan,
        plans=(plan,),
        **more,
    )

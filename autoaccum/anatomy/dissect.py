"""A trial with the allocator's history on, taken apart at the moment when most memory is in use; in the child."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from autoaccum.anatomy.record import Anatomy, Part, largest
from autoaccum.anatomy.replay import Block, Peak, allocations, find_peak, there_before
from autoaccum.anatomy.watch import BUFFER, GRADIENT, OPTIMIZER, PARAMETER, Watched
from autoaccum.device import Device
from autoaccum.errors import DeviceError, NothingFits, WorkloadError
from autoaccum.outputs import whole
from autoaccum.records import Outcome, Sample, Trial
from autoaccum.trial import FORWARD, MAKING, MOVING, Runner, Subject

_INPUT, _ACTIVATION, _TEMPORARY = "input", "activation", "temporary"


def dissect(subject: Subject, runner: Runner, device: Device, trial: Trial, snapshot: Path | None) -> Anatomy:
    """Run the trial as in a fresh process and give its memory at the peak; write memory_viz's file to `snapshot`.

    Raises what the user has to mend, as a probe would.
    """
    _check_device(device.torch_device)
    _start_over(runner)
    with _recorded(stacks=snapshot is not None):
        before = _snapshot()
        with closing(Watched(subject, device.torch_device, compiled=trial.knobs.compile)) as watched:
            with runner.through(watched):
                sample = runner.run(0, replace(trial, warm=False, anew=False))
                check(sample)
            watched.look()
            made = watched.number
        index = device.torch_device.index
        history = _snapshot()["device_traces"][index][len(before["device_traces"][index]) :]
        if snapshot is not None:
            _write(snapshot)
    if allocations(history) != made:
        raise WorkloadError("the allocator's history is not whole: does the workload record, or clear, one itself?")
    peak = find_peak(there_before(before["segments"], index), history, watched.sightings)
    return _anatomy(sample, watched, peak)


def _anatomy(sample: Sample, watched: Watched, peak: Peak) -> Anatomy:
    kinds: Counter[str] = Counter()
    modules: Counter[torch.nn.Module | None] = Counter()
    for block in peak.blocks:
        kind = _kind(block, watched)
        kinds[kind] += block.size_bytes
        if kind == _ACTIVATION:
            modules[watched.at(block.number).module] += block.size_bytes
    allocated, reserved = kinds.total(), sample.peak_reserved_bytes or 0
    return Anatomy(
        micro_batch=sample.micro_batch,
        accumulation_steps=sample.accumulation_steps,
        parameter_bytes=kinds[PARAMETER],
        buffer_bytes=kinds[BUFFER],
        gradient_bytes=kinds[GRADIENT],
        optimizer_bytes=kinds[OPTIMIZER],
        input_bytes=kinds[_INPUT],
        activation_bytes=kinds[_ACTIVATION],
        temporary_bytes=kinds[_TEMPORARY],
        cached_bytes=reserved - allocated,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        moment=_moment(watched, peak),
        modules=largest(_part(watched, module, size) for module, size in modules.items()),
    )


def _kind(block: Block, watched: Watched) -> str:
    """Say what a block is for: by the tensor that was seen in it, else by what ran as it was made."""
    for kind in (PARAMETER, BUFFER, GRADIENT, OPTIMIZER):
        if kind in block.kinds:
            return kind
    note = watched.at(block.number)
    if not note.doing:
        return BUFFER
    if note.doing == MOVING or note.doing.startswith(MAKING):
        return _INPUT
    # A forward pass within the backward pass is a checkpoint's. What the first update leaves behind is a library's.
    computed = note.doing == FORWARD or note.module is not None
    return _ACTIVATION if computed and (note.update > 0 or block.freed_at is not None) else _TEMPORARY


def _moment(watched: Watched, peak: Peak) -> str:
    note = watched.at(peak.number)
    if not note.doing:
        return "before the first batch"
    if note.module is not None:
        name = watched.labels[note.module].name or "the model"
        return f"{note.doing}, in {name}" if note.doing == FORWARD else f"{note.doing}, computing {name} once more"
    return f"{note.doing}, in the loss" if note.doing == FORWARD and not watched.opaque else note.doing


def _part(watched: Watched, module: torch.nn.Module | None, size_bytes: int) -> Part:
    if module is None and watched.opaque:  # of a compiled model, no module tells that it runs
        module = next(iter(watched.labels))
    if module is None:
        return Part(name="loss", kind="", size_bytes=size_bytes)
    label = watched.labels[module]
    return Part(name=label.shown, kind=label.kind, size_bytes=size_bytes)


def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        raise DeviceError("the allocator of the CPU keeps no history: use a GPU, real or virtual")
    if torch.cuda.get_allocator_backend() != "native":
        raise DeviceError(f"the allocator of {torch.cuda.get_allocator_backend()} keeps no history: use PyTorch's own")


def _start_over(runner: Runner) -> None:
    """Leave nothing of earlier trials: what is made anew is seen as it is made, and lies as in a fresh process."""
    runner.start_over()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()


def check(sample: Sample) -> None:
    """Raise what the user has to mend where the trial did not run."""
    if sample.outcome is Outcome.FAILED:
        raise WorkloadError(f"{sample.message} (micro-batch {sample.micro_batch})", details=sample.details)
    if not sample.ok:
        raise NothingFits(f"micro-batch {sample.micro_batch} does not fit: {sample.message}")


@contextmanager
def _recorded(*, stacks: bool) -> Iterator[None]:
    """Have the allocator keep its history; the stacks, which take time, only for people to read."""
    record: Any = torch.cuda.memory._record_memory_history
    record("all", context="alloc" if stacks else None, stacks="python", max_entries=sys.maxsize)
    try:
        yield
    finally:
        record(None)


def _snapshot() -> dict[str, Any]:
    take: Any = torch.cuda.memory._snapshot
    return dict(take())


def _write(path: Path) -> None:
    dump: Any = torch.cuda.memory._dump_snapshot
    with whole(path) as partial:
        dump(str(partial))

"""`autoaccum verify`: a file in a process of its own, or live objects on a copy, to one Verdict."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, overload

from autoaccum.checks import check
from autoaccum.equivalence.verdicts import Verdict
from autoaccum.errors import UsageError
from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.pipes import Echo
from autoaccum.records import Request

if TYPE_CHECKING:
    import torch


@overload
def verify(workload: str | os.PathLike[str], /, *, seed: int = 0, timeout: float = 600.0) -> Verdict: ...
@overload
def verify(model: torch.nn.Module, loss: Callable[[Any, Any], Any], batch: Any, /) -> Verdict: ...
def verify(
    workload: Any, loss: Callable[[Any, Any], Any] | None = None, batch: Any = None, /, **options: Any
) -> Verdict:
    """Say whether accumulating micro-batches equals the full batch, for a model and its loss.

    They are those of "FILE.py[:NAME]", run in a process of its own; or live ones, with a batch of 6 rows or
    more or a function make_batch(size): a copy is examined, and nothing of yours changes.

    >>> autoaccum.verify("model.py").sentence
    "accumulated micro-batches give the full batch's gradient: the loss is a mean over the samples"
    >>> autoaccum.verify(model, loss, next(iter(loader))).verdict
    'equivalent'
    """
    if isinstance(workload, str | os.PathLike):
        if loss is not None or batch is not None:
            raise UsageError("a file brings its own loss and batches: give verify the file alone")
        return run(os.fspath(workload), **options)
    if not callable(loss) or batch is None:
        raise UsageError("give verify a file, or a model, its loss and a batch (or a function make_batch(size))")
    return _live(workload, loss, batch)


def run(workload: str, *, seed: int = 0, timeout: float = 600.0, echo: Echo | None = None) -> Verdict:
    """Verify the workload of a file in a process of its own."""
    check(Request(workload=workload, target_batch=1, seed=seed, timeout=timeout, device="cpu"))
    spec = WorkerSpec(device="cpu", workload=workload, seed=seed, exact_meter=False)
    with Worker(spec, timeout_seconds=timeout, echo=echo) as worker:
        return worker.verify()


def as_json(verdict: Verdict) -> str:
    """Give the verdict as JSON."""
    return json.dumps(asdict(verdict), indent=2)


def details(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Give what the verdict rests on, as a word and a text for each line."""
    if verdict.error is not None:
        split = " + ".join(map(str, verdict.split))
        yield "error", f"{verdict.error:.1e} relative, in {verdict.dtype}, {verdict.rows} rows as {split}"
        yield "weights", f"{_numbers(verdict.weights)}  (expected {_numbers(verdict.expected_weights)})"
    if verdict.residual is not None and verdict.kind == "coupled":
        yield "residual", f"{verdict.residual:.1e}: what no weights of the micro-batches explain"
    if verdict.buffers:
        yield "buffers", f"{_few(verdict.buffers)}: updated once for each micro-batch, from that micro-batch alone"
    if verdict.random_ops:
        yield "random", f"{_few(verdict.random_ops)}: held at the mean to compare"


def _live(model: Any, loss: Callable[[Any, Any], Any], batch: Any) -> Verdict:
    import torch

    from autoaccum.equivalence.examine import ROWS, examine, on_cpu
    from autoaccum.interrupts import then_restore
    from autoaccum.live.ambient import Ambient
    from autoaccum.live.objects import generators_of, held_by
    from autoaccum.live.state import Snapshot, restore_all

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    copied = on_cpu(model)
    ambient, snapshot = Ambient(), Snapshot(model, *held_by(loss), *generators_of(batch))

    def work(_: Callable[[], None]) -> Verdict:
        for parameter in model.parameters():
            parameter.grad = None  # a loss that uses the model itself, not the one it is given, would add to it
        return examine(copied, loss, batch(ROWS) if callable(batch) else batch)

    verdict: Verdict = then_restore(work, lambda: restore_all(ambient.restore, snapshot.restore))
    return verdict


def _numbers(weights: tuple[float, ...]) -> str:
    return " ".join(f"{weight:.4f}".rstrip("0").rstrip(".") for weight in weights)


def _few(names: tuple[str, ...], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

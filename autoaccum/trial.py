"""One trial: real updates with the user's own loss and optimizer at one size, giving one Sample.

The first update is warm-up (the optimizer's state appears at its end, the caching allocator settles);
the others are timed. Out-of-memory is an outcome; so is whatever else the user's code raises.
"""

from __future__ import annotations

import gc
import math
import random
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy
import torch

from autoaccum import batch as batches
from autoaccum.device import Device
from autoaccum.errors import AutoaccumError, WorkloadError
from autoaccum.oom import is_oom
from autoaccum.records import ModelInfo, Outcome, Sample, Trial
from autoaccum.units import format_bytes
from autoaccum.workload import Workload, load, split_spec


@dataclass(slots=True)
class _Failure:
    """What is left of an exception: text only, for its traceback pins the activations."""

    outcome: Outcome
    message: str
    details: str = ""


class Subject:
    """The user's model and optimizer, built at the first trial and kept for the next ones."""

    def __init__(self, spec: str, device: Device, limit_bytes: int, seed: int) -> None:
        self.device = device
        self.limit_bytes = limit_bytes
        self.warnings: list[str] = []
        self.model_info: ModelInfo | None = None
        self._spec = spec
        self._path = split_spec(spec)[0]
        self._file = str(self._path.resolve())  # the workload may change the folder it runs in
        self._seed = seed
        self._workload: Workload | None = None
        self._model: Any = None
        self._optimizer: Any = None
        self._doing = ""
        self._saw_loss = False

    def run(self, number: int, trial: Trial) -> Sample:
        """Run `trial` and say how it went; never raises for what the user's code does."""
        self.device.release()
        self.device.reset()
        failure: _Failure | None = None
        updates: list[tuple[float, float]] = []
        try:
            with self.device.limited(self.limit_bytes):
                self._build()
                updates = self._updates(trial)
        except BaseException as error:
            failure = self._describe(error)
        # Only outside the except block is the traceback gone, and with it what it pins.
        reading = self.device.read()
        if failure is None and reading.used_bytes > self.limit_bytes:
            over, limit = format_bytes(reading.used_bytes - self.limit_bytes), format_bytes(self.limit_bytes)
            failure = _Failure(Outcome.OOM, f"ran, but its peak is {over} over the limit of {limit}")
        if failure is not None:
            self._clean_up()
        timed = (updates[1:] or updates) if self.device.timed else []
        step_seconds = median(whole for whole, _ in timed) if timed else None
        update_samples = trial.micro_batch * (trial.accumulation_steps - 1) + (
            trial.last_micro_batch or trial.micro_batch
        )
        return Sample(
            trial=number,
            phase=trial.phase,
            micro_batch=trial.micro_batch,
            accumulation_steps=trial.accumulation_steps,
            outcome=failure.outcome if failure else Outcome.OK,
            peak_allocated_bytes=reading.allocated_bytes,
            peak_reserved_bytes=reading.reserved_bytes,
            device_used_bytes=reading.used_bytes,
            step_seconds=step_seconds,
            samples_per_second=update_samples / step_seconds if step_seconds else None,
            alloc_retries=reading.retries,
            message=failure.message if failure else "",
            optimizer_seconds=median(optimizer for _, optimizer in timed) if timed else None,
            details=failure.details if failure else "",
        )

    def _build(self) -> None:
        if self._workload is None:
            self._doing = "loading the file"
            self._reseed()
            self._workload = load(self._spec)
        if self._model is None:
            self._doing = "build_model()"
            model = self._workload.build_model()
            if not isinstance(model, torch.nn.Module):
                raise WorkloadError(f"build_model() returned {type(model).__name__}, not a torch.nn.Module")
            self._doing = "moving the model to the device"
            self._model = model.to(self.device.torch_device).train()
            self.model_info = _model_info(model)
        if self._optimizer is None:
            self._doing = "build_optimizer(model)"
            self._optimizer = self._workload.build_optimizer(self._model)
            if not callable(getattr(self._optimizer, "step", None)):
                raise WorkloadError(f"build_optimizer(model) returned {type(self._optimizer).__name__}, no optimizer")

    def _updates(self, trial: Trial) -> list[tuple[float, float]]:
        """Run the updates; give the seconds of each, and of the optimizer's part in it."""
        assert self._workload is not None  # noqa: S101  (for the type checker)
        self._reseed()
        batch = last = self._make_batch(self._workload, trial.micro_batch)
        if trial.last_micro_batch is not None:
            last = self._make_batch(self._workload, trial.last_micro_batch)
        micro_steps = [batch] * (trial.accumulation_steps - 1) + [last]
        self._optimizer.zero_grad(set_to_none=True)
        times = []
        for _ in range(trial.updates):
            start = self._now()
            for each in micro_steps:
                self._micro_step(self._workload, each, trial.accumulation_steps)
            computed = self._now()
            self._doing = "the optimizer's step"
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            end = self._now()
            times.append((end - start, end - computed))
        return times

    def _make_batch(self, workload: Workload, size: int) -> Any:
        self._doing = f"make_batch({size})"
        batch = workload.make_batch(size)
        batches.check_rows(batch, size)
        return batch

    def _micro_step(self, workload: Workload, batch: Any, steps: int) -> None:
        self._doing = "the batch's move to the device"
        moved = batches.to_device(batch, self.device.torch_device)
        self._doing = "the forward pass"
        loss = _mean(workload.loss(self._model, moved))
        if not self._saw_loss:
            self._saw_loss = True
            if not math.isfinite(loss.item()):
                self.warnings.append(f"the first loss is {loss.item()}: memory does not depend on it, training does")
        self._doing = "the backward pass"
        torch.autograd.backward(loss / steps)

    def _now(self) -> float:
        self.device.synchronize()
        return time.perf_counter()

    def _reseed(self) -> None:
        random.seed(self._seed)
        numpy.random.seed(self._seed % 2**32)
        torch.manual_seed(self._seed)

    def _clean_up(self) -> None:
        """Drop what a broken-off update left behind: gradients, and half-made optimizer state."""
        if self._model is not None:
            self._model.zero_grad(set_to_none=True)
        self._optimizer = None
        gc.collect()
        self.device.release()

    def _describe(self, error: BaseException) -> _Failure:
        if is_oom(error):
            return _Failure(Outcome.OOM, f"out of memory in {self._doing}: {_first_line(error)}")
        if isinstance(error, AutoaccumError):
            return _Failure(Outcome.FAILED, str(error))
        where = _place(error, self._path, self._file) or self._doing
        what = f"called sys.exit({error.code})" if isinstance(error, SystemExit) else _first_line(error)
        details = "".join(traceback.format_exception(error))
        return _Failure(Outcome.FAILED, f"{where}: {what}", details)


def _mean(loss: Any) -> torch.Tensor:
    """Give the mean loss of what the user's loss returned, after a look at it."""
    if isinstance(loss, tuple) and len(loss) == 2:
        loss = loss[0] / loss[1]
    if not isinstance(loss, torch.Tensor):
        raise WorkloadError(f"loss(model, batch) returned {type(loss).__name__}: return a tensor, or (loss_sum, count)")
    if loss.numel() != 1:
        raise WorkloadError(
            f"loss(model, batch) returned shape {tuple(loss.shape)}: return one number, such as its mean"
        )
    if not loss.requires_grad:
        raise WorkloadError("loss(model, batch) returned a tensor without grad: was it detached, or under no_grad?")
    return loss.reshape(())


def _model_info(model: torch.nn.Module) -> ModelInfo:
    parameters = list(model.parameters())
    return ModelInfo(
        name=type(model).__name__,
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        gradient_bytes=sum(p.numel() * p.element_size() for p in parameters if p.requires_grad),
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _place(error: BaseException, path: Path, file: str) -> str | None:
    """Give the last place in the user's own file that the error came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{path}:{frames[-1].lineno} in {frames[-1].name}" if frames else None

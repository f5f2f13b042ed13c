"""One trial: real updates with the user's own loss and optimizer at one size, giving one Sample.

The first update is warm-up (the optimizer's state appears at its end, the caching allocator settles);
the others are timed. Out-of-memory is an outcome; so is whatever else the user's code raises.
"""

from __future__ import annotations

import gc
import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

import torch

from autoaccum import batch as batches
from autoaccum.device import Device
from autoaccum.errors import AutoaccumError
from autoaccum.knobs.names import words
from autoaccum.knobs.turn import Turned
from autoaccum.looking import Look
from autoaccum.oom import is_oom
from autoaccum.parts import Parts
from autoaccum.records import PLAIN, Outcome, Sample, Trial, Window
from autoaccum.training.accumulate import value_and_count
from autoaccum.units import format_bytes

# What a trial is doing, as a subject is told.
MAKING, MOVING = "make_batch", "the batch's move to the device"
FORWARD, BACKWARD, STEP = "the forward pass", "the backward pass", "the optimizer's step"


class Subject(Protocol):
    """Where the parts come from: a file of the user's, or live objects."""

    doing: str  # for the message of an error
    catches_interrupts: bool  # in a process of its own, a Ctrl-C can only come from the user's code

    def parts(self) -> Parts:
        """Give what is trained, built at the first call."""

    def begin(self) -> None:
        """Make a trial independent of the ones before it."""

    def discard(self) -> None:
        """Drop what a broken-off update left behind: gradients, and half-made optimizer state."""

    def place(self, error: BaseException) -> str | None:
        """Give the last place in the user's own code that the error came through."""


@dataclass(slots=True)
class _Failure:
    """What is left of an exception: text only, for its traceback pins the activations."""

    outcome: Outcome
    message: str
    details: str = ""


class Runner:
    """Runs trials of one subject on one device, under one limit."""

    def __init__(self, subject: Subject, device: Device, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.warnings: list[str] = []
        self.windows: list[Window] = []  # of the last trial, in order, its warm-up included
        self._subject = subject
        self._device = device
        self._saw_loss = False
        self._turned: Turned | None = None
        self._size = 0  # of the last trial
        self._look: Look | None = None  # at the last trial, if it was to be recorded

    def run(self, number: int, trial: Trial) -> Sample:
        """Run `trial` and say how it went; never raises for what the user's code does."""
        if trial.anew:
            self.start_over()
            gc.collect()
        if not trial.warm:
            self._device.release()
            self._device.reset()
        failure: _Failure | None = None
        limit_bytes = self.limit_bytes if trial.limit_bytes is None else trial.limit_bytes
        self.windows, self._look = [], Look(self._device) if trial.recorded else None
        try:
            with self._device.limited(limit_bytes):
                self._updates(self._parts(trial), trial)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not self._subject.catches_interrupts:
                raise
            failure = self._describe(error)
        # Only outside the except block is the traceback gone, and with it what it pins.
        reading = self._device.read()
        if failure is None and reading.used_bytes > limit_bytes:
            over, limit = format_bytes(reading.used_bytes - limit_bytes), format_bytes(limit_bytes)
            failure = _Failure(Outcome.OOM, f"ran, but its peak is {over} over the limit of {limit}")
        if failure is not None:
            self.start_over()
            gc.collect()
            self._device.release()
        needs = None
        if failure is None and self._look is not None:
            needs = self._look.needs(self._subject.parts(), accumulates=trial.accumulation_steps > 1)
        timed = self._timed(trial) if self._device.timed else []
        step_seconds = median(window.seconds for window in timed) if timed else None
        return Sample(
            trial=number,
            phase=trial.phase,
            micro_batch=trial.micro_batch,
            accumulation_steps=len(trial.micro_batches) if trial.whole_updates else trial.accumulation_steps,
            outcome=failure.outcome if failure else Outcome.OK,
            peak_allocated_bytes=reading.allocated_bytes,
            peak_reserved_bytes=reading.reserved_bytes,
            device_used_bytes=reading.used_bytes,
            step_seconds=step_seconds,
            samples_per_second=timed[0].samples / step_seconds if step_seconds else None,
            alloc_retries=reading.retries,
            message=failure.message if failure else "",
            optimizer_seconds=median(window.optimizer_seconds for window in timed) if timed else None,
            forward_seconds=median(window.forward_seconds for window in timed) if timed else None,
            resident_bytes=None if needs is None else needs.base_bytes,
            computing_bytes=None if needs is None else needs.firm_bytes,
            scratch_bytes=None if needs is None else needs.scratch_bytes,
            held_bytes=None if needs is None else needs.held_bytes,
            step_bytes=None if needs is None else needs.step_bytes,
            options=trial.knobs.options,
            details=failure.details if failure else "",
        )

    def start_over(self) -> None:
        """Drop what a broken-off update left behind, and turn all knobs back."""
        self._subject.discard()
        if self._turned is not None:
            self._turned.undo()
            self._turned = None

    @contextmanager
    def through(self, front: Subject) -> Iterator[None]:
        """Have the trials within run through `front`, which stands before the own subject."""
        own, self._subject = self._subject, front
        try:
            yield
        finally:
            self._subject = own

    def _parts(self, trial: Trial) -> Parts:
        """Give what is trained, with the trial's knobs turned and no others."""
        knobs = trial.knobs
        # What was compiled for another size would be compiled anew for any size, as it is not in training.
        stale = knobs.compile and trial.micro_batch != self._size
        self._size = trial.micro_batch
        if self._turned is not None and (self._turned.knobs != knobs or stale):
            self.start_over()
        parts = self._subject.parts()
        if self._turned is None and knobs != PLAIN:
            self._subject.doing = f"turning on {', '.join(words(knobs))}"
            self._turned = Turned(knobs, parts.model, parts.optimizers, self._device.torch_device)
        return parts

    def _timed(self, trial: Trial) -> list[Window]:
        if trial.whole_updates:
            return self.windows[trial.updates :]
        return self.windows if trial.warm else self.windows[1:] or self.windows

    def _updates(self, parts: Parts, trial: Trial) -> None:
        """Run the updates, and note a window for each."""
        if not trial.warm:
            self._subject.begin()
            parts.drop_gradients()
        whole = trial.micro_batches if trial.whole_updates else ()
        made = {size: self._make_batch(parts, size) for size in dict.fromkeys((*trial.sizes, *whole))}
        for sizes in [trial.sizes] * trial.updates + [whole] * trial.whole_updates:
            micro_batches = [made[size] for size in sizes]
            last = len(self.windows) == trial.updates - 1
            with self._look.at_the_last_update() if self._look is not None and last else nullcontext():
                self.windows.append(self._update(parts, micro_batches, sum(sizes)))

    def _update(self, parts: Parts, micro_batches: Sequence[Any], samples: int) -> Window:
        device, forward = self._device, []
        device.synchronize()
        joules, start = device.joules(), device.stamp()
        for batch in micro_batches:
            forward.append(self._micro_step(parts, batch, len(micro_batches)))
            if len(forward) == 1:
                first = device.stamp()
        computed = device.stamp()
        if self._look is not None:
            self._look.step_begins(parts, first=not self.windows)
        self._subject.doing = STEP
        self._step(parts.optimizers)
        parts.drop_gradients()
        end = device.stamp()
        device.synchronize()
        used = device.joules()
        return Window(
            samples=samples,
            seconds=device.seconds_between(start, end),
            first_seconds=device.seconds_between(start, first),
            forward_seconds=sum(device.seconds_between(*each) for each in forward),
            optimizer_seconds=device.seconds_between(computed, end),
            joules=None if used is None or joules is None else used - joules,
        )

    def _make_batch(self, parts: Parts, size: int) -> Any:
        self._subject.doing = f"{MAKING}({size})"
        return parts.make_batch(size)

    def _micro_step(self, parts: Parts, batch: Any, steps: int) -> tuple[Any, Any]:
        """Add the gradient of one micro-batch; give when its forward pass began and when it ended."""
        self._subject.doing = MOVING
        moved = batches.to_device(batch, self._device.torch_device)
        self._subject.doing = FORWARD
        began = self._device.stamp()
        with self._turned.computing() if self._turned is not None else nullcontext():
            loss = _mean(parts.loss(parts.model, moved))
        ended = self._device.stamp()
        if not self._saw_loss:
            self._saw_loss = True
            if not math.isfinite(loss.item()):
                self.warnings.append(f"the first loss is {loss.item()}: memory does not depend on it, training does")
        self._subject.doing = BACKWARD
        scaler = None if self._turned is None else self._turned.scaler
        torch.autograd.backward(loss / steps if scaler is None else scaler.scale(loss / steps))
        return began, ended

    def _step(self, optimizers: Sequence[Any]) -> None:
        scaler = None if self._turned is None else self._turned.scaler
        for optimizer in optimizers:
            optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()

    def _describe(self, error: BaseException) -> _Failure:
        doing = self._subject.doing
        if is_oom(error):
            return _Failure(Outcome.OOM, f"out of memory in {doing}: {_first_line(error)}")
        if isinstance(error, AutoaccumError):
            return _Failure(Outcome.FAILED, str(error))
        where = self._subject.place(error) or doing
        what = f"called sys.exit({error.code})" if isinstance(error, SystemExit) else _first_line(error)
        details = "".join(traceback.format_exception(error))
        return _Failure(Outcome.FAILED, f"{where}: {what}", details)


def _mean(loss: Any) -> torch.Tensor:
    """Give the mean loss of what the user's loss returned, after a look at it."""
    value, count, is_mean = value_and_count(loss, rows=1)
    return value if is_mean else value / count


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__

"""A closer look at one trial: what its updates cannot do without, for bounds on the sizes that were not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from autoaccum.device.base import Device, Needs, Recorder
from autoaccum.parts import Parts, model_info


class Look:
    """Is told how a trial goes; the device's history says what was needed, or where it keeps none, the first step."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._recorder: Recorder | None = None
        self._base_bytes = 0  # allocated as the last update begins
        self._before_steps: tuple[int, int] | None = None  # peak and optimizers' state before the trial's first step

    @contextmanager
    def at_the_last_update(self) -> Iterator[None]:
        """Look closely at what is done within."""
        self._base_bytes = self._device.allocated_bytes()
        with self._device.recorded() as self._recorder:
            yield

    def step_begins(self, parts: Parts, *, first: bool) -> None:
        """Note that the gradients are there, and the optimizer's step comes next."""
        if first:
            self._before_steps = self._device.read().allocated_bytes, parts.state_bytes()
        if self._recorder is not None:
            self._recorder.step_begins()

    def needs(self, parts: Parts, *, accumulates: bool) -> Needs | None:
        """Give what was needed, gradients that stay counted with what was there before; None where nothing tells."""
        model = model_info(parts)
        kept = model.gradient_bytes if accumulates else 0
        seen = None if self._recorder is None else self._recorder.needs
        if seen is not None:
            return replace(seen, base_bytes=seen.base_bytes + kept)
        if self._before_steps is None:
            return None
        peak, (before, state) = self._device.read().allocated_bytes, self._before_steps
        computing = min(peak, before + parts.state_bytes() - state)
        return Needs(
            base_bytes=min(computing, self._base_bytes + kept),
            firm_bytes=computing,
            scratch_bytes=0,
            held_bytes=computing,
            step_bytes=peak,
        )

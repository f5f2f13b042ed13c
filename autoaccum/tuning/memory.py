"""Which candidates fit: what ran and what did not, and a memory model for each set of knobs. Pure.

The search has found what fits without further knobs. Knobs that change memory get a model of their own from the
first size that was run with them: what does not grow with the batch is taken from the search's model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autoaccum.fit import fit_memory
from autoaccum.records import Knobs, MemoryModel, Outcome, Sample
from autoaccum.tuning.space import Candidate


class MemoryBook:
    """What is known of the memory of candidates."""

    def __init__(
        self, *, ground: Knobs, fits: Callable[[int], bool], model: MemoryModel | None, limit_bytes: int
    ) -> None:
        self.limit_bytes = limit_bytes
        self._ground = kind_of(ground)
        self._fits = fits
        self._model = model
        self._peaks: dict[Knobs, dict[int, int]] = {}
        self._failed: dict[Knobs, int] = {}

    def ran(self, candidate: Candidate, peak_bytes: int) -> None:
        """Note a candidate that ran."""
        self._peaks.setdefault(kind_of(candidate.knobs), {})[candidate.micro_batch] = peak_bytes

    def did_not_fit(self, candidate: Candidate) -> None:
        """Note a candidate that ran out of memory."""
        kind = kind_of(candidate.knobs)
        self._failed[kind] = min(candidate.micro_batch, self._failed.get(kind, candidate.micro_batch))

    def known(self, knobs: Knobs) -> bool:
        """Whether anything was run with knobs that take as much memory."""
        kind = kind_of(knobs)
        return kind == self._ground or kind in self._peaks or kind in self._failed

    def fits(self, candidate: Candidate) -> bool:
        """Whether the candidate may be run: nothing that is known says that it does not fit."""
        kind, size = kind_of(candidate.knobs), candidate.micro_batch
        if size >= self._failed.get(kind, size + 1):
            return False
        if any(size <= ran for ran in self._peaks.get(kind, {})):
            return True
        if kind == self._ground:
            return self._fits(size)
        return self.excess(candidate) <= 0

    def excess(self, candidate: Candidate) -> float:
        """Give by what share of the limit the candidate is predicted to exceed it; 0 or less: it fits."""
        if candidate.micro_batch >= self._failed.get(kind_of(candidate.knobs), candidate.micro_batch + 1):
            return 1.0
        predicted = self.predicted(candidate)
        return 0.0 if predicted is None else predicted / self.limit_bytes - 1

    def predicted(self, candidate: Candidate) -> int | None:
        """Give the bytes that the candidate is expected to hold on the device; None where nothing tells."""
        kind = kind_of(candidate.knobs)
        if candidate.micro_batch in self._peaks.get(kind, {}):
            return self._peaks[kind][candidate.micro_batch]
        if self._model is None:
            return None
        peaks = self._peaks.get(kind) or self._peaks.get(self._nearest(kind))
        if kind == self._ground or not peaks:
            return self._model.device_bytes(candidate.micro_batch)
        return _own_model(peaks, self._model).device_bytes(candidate.micro_batch)

    def _nearest(self, kind: Knobs) -> Knobs:
        """Give those of the knobs that something is known of: what they save together, some of them save at least.

        Of knobs that nobody tried nothing is known but the search's model, as if they saved nothing.
        """
        options = kind.options
        parts = [known for known in self._peaks if known.options.items() <= options.items()]
        return max(parts, key=lambda known: len(known.options), default=self._ground)


def _own_model(peaks: dict[int, int], base: MemoryModel) -> MemoryModel:
    """Give the model of knobs with these peaks, which lacks only what a single size cannot tell."""
    samples = [
        Sample(
            trial=0, phase="tune", micro_batch=size, accumulation_steps=2, outcome=Outcome.OK,
            peak_reserved_bytes=peak - base.overhead_bytes, device_used_bytes=peak,
        )
        for size, peak in peaks.items()
    ]  # fmt: skip
    fitted = fit_memory(samples)
    if fitted is not None:
        return fitted
    size, peak = max(peaks.items())
    grown = peak - base.overhead_bytes - base.fixed_bytes
    return replace(base, bytes_per_sample=max(0, grown // size))


def kind_of(knobs: Knobs) -> Knobs:
    """Give the knobs without those that do not change what is held."""
    return replace(knobs, tf32=False, optimizer=None if knobs.optimizer == "fused" else knobs.optimizer)

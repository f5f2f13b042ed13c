"""What the picture of memory shows: layers of what is known, the fit with its error, and every trial. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoaccum.records import Evidence, ModelInfo, Outcome, Sample

_POINTS = 60  # of a curve, about
_BEYOND = 1.15  # the curves end so far beyond the last size that was tried
_DIED = (Outcome.OOM, Outcome.KILLED, Outcome.TIMED_OUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Something that holds memory, at one size."""

    name: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A trial: how large, and what it held; for one that ran out of memory the limit, which it needs at least."""

    micro_batch: int
    size_bytes: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """All of it. The curves have a value for each of `sizes`; without a memory model there are none."""

    limit_bytes: int | None
    sizes: tuple[int, ...]
    fit: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    layers: tuple[tuple[str, tuple[int, ...]], ...]  # from the bottom up; they add up to the fit
    ran: tuple[Point, ...]
    failed: tuple[Point, ...]
    confirmed: tuple[Point, ...]  # in a fresh process set up as training is

    @property
    def points(self) -> list[Point]:
        """Every trial."""
        return [*self.ran, *self.failed, *self.confirmed]

    @property
    def largest_bytes(self) -> int:
        """The top of the picture."""
        return max([*self.high, *(point.size_bytes for point in self.points), self.limit_bytes or 0, 1])


def picture(evidence: Evidence) -> Picture:
    """Give the picture of what was measured."""
    # With other knobs than the search stood on at its end, what a trial held does not compare.
    samples = [s for s in evidence.samples if s.options == evidence.ground or s.phase == "confirm"]
    limit = None if evidence.budget is None else evidence.budget.limit_bytes
    model = evidence.memory_model
    sizes = _grid(samples) if model is not None else ()
    fit = tuple(model.device_bytes(size) for size in sizes) if model is not None else ()
    parts = [parts_of(total, model.overhead_bytes, evidence.model) for total in fit] if model is not None else []
    errors = [model.error_bytes(size) for size in sizes] if model is not None else []
    names = [part.name for part in parts[0]] if parts else []
    ok = [sample for sample in samples if sample.ok and sample.device_used_bytes is not None]
    return Picture(
        limit_bytes=limit,
        sizes=sizes,
        fit=fit,
        low=tuple(max(0, total - error) for total, error in zip(fit, errors, strict=True)),
        high=tuple(total + error for total, error in zip(fit, errors, strict=True)),
        layers=tuple((name, tuple(at[index].size_bytes for at in parts)) for index, name in enumerate(names)),
        ran=tuple(_ran(sample) for sample in ok if sample.phase != "confirm"),
        failed=tuple(_failed(sample, limit) for sample in samples if sample.outcome in _DIED),
        confirmed=tuple(_ran(sample) for sample in ok if sample.phase == "confirm"),
    )


def parts_of(total_bytes: int, overhead_bytes: int, model: ModelInfo | None) -> list[Part]:
    """Give what holds so much memory; what nobody else holds is activations and the like.

    >>> [part.name for part in parts_of(10 * GIB, 400 * MIB, model)]
    ['context and libraries', 'parameters', 'gradients', 'optimizer state', 'activations, temporary, cache']
    """
    known = [Part(name="context and libraries", size_bytes=overhead_bytes)]
    if model is not None:
        known.append(Part(name="parameters", size_bytes=model.parameter_bytes + model.buffer_bytes))
        known.append(Part(name="gradients", size_bytes=model.gradient_bytes))
        if model.optimizer_state_bytes is not None:
            known.append(Part(name="optimizer state", size_bytes=model.optimizer_state_bytes))
    parts, rest = [], total_bytes
    for part in known:  # a fit that lies too low has no room for all of them
        parts.append(replace(part, size_bytes=min(part.size_bytes, rest)))
        rest -= parts[-1].size_bytes
    name = "activations, temporary, cache" if model is not None else "model, activations, cache"
    return [*parts, Part(name=name, size_bytes=rest)]


def _grid(samples: Sequence[Sample]) -> tuple[int, ...]:
    last = max(sample.micro_batch for sample in samples) * _BEYOND if samples else 1
    return tuple(sorted({max(1, round(1 + (last - 1) * step / _POINTS)) for step in range(_POINTS + 1)}))


def _ran(sample: Sample) -> Point:
    return Point(micro_batch=sample.micro_batch, size_bytes=sample.device_used_bytes or 0, text=sample.phase)


def _failed(sample: Sample, limit: int | None) -> Point:
    words = {Outcome.OOM: "out of memory", Outcome.KILLED: "killed", Outcome.TIMED_OUT: "timed out"}
    needs = max(limit or 0, sample.device_used_bytes or 0)
    return Point(micro_batch=sample.micro_batch, size_bytes=needs, text=words[sample.outcome])

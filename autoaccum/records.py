"""The values that cross rooms: frozen, plain, and the same in Python, JSON and CSV.

Bytes are `int` named `*_bytes`, times are `float` named `*_seconds`; None means "not measured".
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from autoaccum.units import format_bytes

TRIAL_MARK = b"\x1e"  # what a worker prints where a trial begins: ASCII's record separator


class Outcome(StrEnum):
    """How a trial ended."""

    OK = "ok"
    OOM = "oom"
    KILLED = "killed"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


class Record:
    """To plain data and back, for every record below."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Give the record as plain data, ready for `json.dumps`, without the fields that are marked transient."""
        kept = [f.name for f in fields(self) if not f.metadata.get("transient")]  # type: ignore[arg-type]
        return {name: _plain(getattr(self, name)) for name in kept}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild the record from `to_dict`; keys of a newer version are ignored."""
        hints = typing.get_type_hints(cls)
        known = {f.name for f in fields(cls) if not f.metadata.get("transient")}  # type: ignore[arg-type]
        return cls(**{key: _revive(hints[key], value) for key, value in data.items() if key in known})


_SCALARS: dict[Any, tuple[type, ...]] = {int: (int,), float: (float, int), str: (str,), bool: (bool,)}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _revive(hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        return None if value is None else _revive(typing.get_args(hint)[0], value)
    if typing.get_origin(hint) is tuple:
        return tuple(_revive(typing.get_args(hint)[0], item) for item in value)
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_dict(value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    if hint in _SCALARS and type(value) not in _SCALARS[hint]:
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Request(Record):
    """What a person asks for; the fields have the names of the command line's options."""

    workload: str
    target_batch: int
    memory_budget: str | None = None
    device: str = "auto"
    world_size: int = 1
    reference_batch: int | None = None  # the batch that the recipe was made for
    split: str = "auto"
    find_max: bool = False
    tune_trials: int = 0
    tune_seconds: float = 60.0
    allow: str | None = None  # the knobs that may be turned besides those that need no leave
    objective: str = "throughput"
    storage: str | None = None  # of the study; None: a journal in the run folder
    snapshot: str | None = None  # the file for the history of the plan's memory
    seed: int = 0
    timeout: float = 600.0
    rehearse: bool = True  # on a virtual GPU first, where the device is a real one
    workload_digest: str = ""  # of the file, so that a run is not continued with another one
    started_in: str = ""  # the folder that a relative path starts from


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs(Record):
    """What a plan asks of the training besides its sizes; the defaults leave it as the user wrote it."""

    precision: str | None = None  # "bf16" or "fp16", under autocast
    tf32: bool = False
    compile: bool = False
    checkpoint: str | None = None  # "half": every second of the repeated blocks; or "all"
    channels_last: bool = False
    optimizer: str | None = None  # "foreach" or "fused": how its step is computed
    expandable_segments: bool = False  # of CUDA's allocator, from the start of the process

    @property
    def options(self) -> dict[str, Any]:
        """What differs from the defaults: a plan's `options`."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}


PLAIN = Knobs()  # none turned


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial(Record):
    """One order to the worker: run real updates at this size."""

    micro_batch: int
    accumulation_steps: int = 2  # gradients stay resident only from the second micro-step on
    updates: int = 2  # the first is warm-up: the optimizer's state appears at its end
    micro_batches: tuple[int, ...] = ()  # those of a plan, whose sizes may differ
    whole_updates: int = 0  # so many more, of all the plan's micro-batches; then these are the ones that are timed
    phase: str = "grow"
    fresh: bool = False  # in a new process, where nothing is left of earlier sizes
    anew: bool = False  # with a new optimizer: then memory is laid out as in a new process
    limit_bytes: int | None = None  # under this limit; None: under the run's
    warm: bool = False  # go on where the same trial left off a moment ago: no warm-up
    recorded: bool = False  # look more closely at its last update, which may cost a little time
    knobs: Knobs = PLAIN

    @property
    def sizes(self) -> tuple[int, ...]:
        """The micro-batches of one update: so many of the plan's, the last one among them, else all alike."""
        if not self.micro_batches:
            return (self.micro_batch,) * self.accumulation_steps
        return (*self.micro_batches[: self.accumulation_steps - 1], self.micro_batches[-1])

    @property
    def micro_steps(self) -> int:
        """How many micro-steps the whole trial takes."""
        return self.updates * self.accumulation_steps + self.whole_updates * len(self.micro_batches)


@dataclass(frozen=True, kw_only=True, slots=True)
class Window(Record):
    """The time of one update, or of a part of one: some micro-steps and the optimizer's step."""

    samples: int
    seconds: float
    first_seconds: float  # of the first micro-step: its gradient is kept, those of the others are added to it
    forward_seconds: float
    optimizer_seconds: float
    joules: float | None = None  # of the whole device


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample(Record):
    """What one trial showed. All but `fresh` and `details` are columns of samples.csv."""

    trial: int
    phase: str
    micro_batch: int
    accumulation_steps: int
    outcome: Outcome
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None  # reserved, and what the process holds besides
    step_seconds: float | None = None  # one whole update: all micro-steps and the optimizer's step
    samples_per_second: float | None = None
    alloc_retries: int | None = None
    message: str = ""
    optimizer_seconds: float | None = None  # the optimizer's part of step_seconds
    forward_seconds: float | None = None  # the forward passes' part of it
    resident_bytes: int | None = None  # there between micro-steps: weights, optimizer's state, gradients if kept
    computing_bytes: int | None = None  # live at the most outside of the optimizer's step, without scratch if known
    scratch_bytes: int | None = None  # what was live besides, where that is known: given back at once
    held_bytes: int | None = None  # what could not be given back then: the allocator's segments in use, at the most
    step_bytes: int | None = None  # the same in the optimizer's step
    options: dict[str, Any] = field(default_factory=dict)  # the knobs that were turned
    fresh: bool = False  # the first trial of its process
    details: str = ""  # the traceback of the user's own code

    @property
    def ok(self) -> bool:
        """Whether the size ran."""
        return self.outcome is Outcome.OK


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceInfo(Record):
    """The device that the trials ran on, as it was before them."""

    kind: str
    name: str
    uuid: str | None
    total_bytes: int
    free_bytes: int
    overhead_bytes: int = 0  # held by the process before there is a model: context, libraries
    overhead_told: bool = False  # NVML tells it of this very process; else the device's use grew by it
    repeatable: bool = True  # whether the same trial has the same peak in every process, used or fresh
    capability: str | None = None  # of CUDA, such as "8.9"
    multiprocessors: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreseen(Record):
    """What a rehearsal saw of one size, with accumulation: of PyTorch's memory, as in a sample."""

    micro_batch: int
    resident_bytes: int
    computing_bytes: int
    held_bytes: int
    step_bytes: int
    least_bytes: int  # the lowest limit under which it ran


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior(Record):
    """What was expected of the device before the first trial."""

    start: int | None  # the largest micro-batch that is predicted to fit; None: none is, or there was no rehearsal
    words: str  # what it rests on, or why there is none
    margin: float = 0.0  # by what share a device may need more than was foreseen
    overhead_bytes: int = 0  # what a process is expected to hold besides PyTorch's memory
    sizes: tuple[Foreseen, ...] = ()  # ascending


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget(Record):
    """What the training process may hold on the device, all in all."""

    limit_bytes: int
    reserve_bytes: int
    source: str  # "free": what was free, less a reserve; "user": as asked; "capped": asked for more


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo(Record):
    """The user's model, as far as memory is concerned."""

    name: str
    parameters: int
    parameter_bytes: int
    gradient_bytes: int = 0  # of the parameters that are trained
    gradient_dtype: str = ""  # of the most of them
    optimizer: str = ""
    beta1: float | None = None  # of an optimizer that has betas
    buffer_bytes: int = 0
    optimizer_state_bytes: int | None = None  # after an update; None before there was one, or where there is none


_MISS_UNKNOWN = 0.10  # of a prediction beyond the samples, where there are too few of them to say
_MISS_LEAST = 0.01  # of any prediction


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryModel(Record):
    """device(m) = overhead + max(floor, fixed + per_sample * m)."""

    fixed_bytes: int
    bytes_per_sample: int
    overhead_bytes: int
    floor_bytes: int
    worst_miss_bytes: int  # the largest distance from a sample that it was fitted on
    largest_size: int = 0  # that it was fitted on
    miss_ahead: float | None = None  # by what share those up to half the largest miss it; None: too few to say

    def device_bytes(self, micro_batch: int) -> int:
        """Predict what the process holds on the device at this micro-batch."""
        grown = self.fixed_bytes + self.bytes_per_sample * micro_batch
        return self.overhead_bytes + max(self.floor_bytes, grown)

    def error_bytes(self, micro_batch: int) -> int:
        """Give by how much a prediction may be off: as the samples were missed, and more with every doubling beyond.

        A fit on doubling sizes says of itself how well it looks one doubling ahead: `miss_ahead`.
        """
        least = max(self.worst_miss_bytes, round(self.device_bytes(micro_batch) * _MISS_LEAST))
        if micro_batch <= self.largest_size or not self.largest_size:  # an older report does not say how far
            return least
        share = _MISS_UNKNOWN if self.miss_ahead is None else max(self.miss_ahead, _MISS_LEAST)
        doublings = max(1.0, math.log2(micro_batch / max(1, self.largest_size)))
        return max(least, round(self.device_bytes(micro_batch) * share * doublings))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bracket(Record):
    """Between which sizes the limit lies: one ran, the other did not (None: none was found)."""

    largest_ok: int | None
    smallest_failed: int | None


_ENDS = {"oom": "ran out of memory", "killed": "was killed", "timed_out": "did not end in time"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate(Record):
    """Why the search ended: the largest size that ran, and what speaks against the next larger one."""

    micro_batch: int  # it ran, and as far as the search saw no plan can use a larger one
    next_micro_batch: int | None  # the next larger one that a plan could use; None: there is none
    basis: str  # "target": none is needed; "oom", "killed", "timed_out": it ran; "predicted": it needs too much
    needed_bytes: int | None = None  # what it needs at the least, the model's error taken off, where that is predicted
    limit_bytes: int | None = None

    @property
    def words(self) -> str:
        """The certificate in a sentence."""
        ran = f"micro-batch {self.micro_batch} ran in the search"
        if self.next_micro_batch is None:
            return f"{ran}, and no plan can use a larger one"
        if self.basis != "predicted":
            return f"{ran}, and {self.next_micro_batch}, the next one that a plan can use, {_ENDS[self.basis]}"
        needed, limit = format_bytes(self.needed_bytes or 0), format_bytes(self.limit_bytes or 0)
        after = f"{self.next_micro_batch}, the next one that a plan can use"
        return f"{ran}, and {after}, is predicted to need {needed} of {limit} at the least"


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence(Record):
    """What a plan rests on: the trials, and what they taught."""

    samples: tuple[Sample, ...]
    memory_model: MemoryModel | None
    budget: Budget | None
    model: ModelInfo | None

    @property
    def ground(self) -> dict[str, Any]:
        """The knobs that the search stood on at its end: none, unless nothing fits without."""
        return next((s.options for s in reversed(self.samples) if s.ok and s.phase != "confirm"), {})

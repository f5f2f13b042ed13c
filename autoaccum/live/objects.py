"""The user's live objects: a look at them before anything runs, and the subject of trials that they make."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from autoaccum import batch as batches
from autoaccum.device.live import LiveDevice
from autoaccum.errors import UsageError
from autoaccum.live.state import Snapshot
from autoaccum.parts import Parts
from autoaccum.training.guards import as_optimizers, check_parameters

_WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DataParallel", "DeepSpeedEngine"}
_BEFORE_WRAPPING = "probe the plain model before wrapping it, the same on every rank, with world_size=N"


@dataclass(frozen=True, kw_only=True, slots=True)
class Objects:
    """What is trained. Batches come from `make_batch`, or are the rows of `sample` repeated."""

    model: torch.nn.Module
    loss: Callable[[Any, Any], Any]
    optimizers: tuple[torch.optim.Optimizer, ...]
    make_batch: Callable[[int], Any] | None
    sample: Any = None

    @classmethod
    def of(cls, model: Any, loss: Any, batch: Any, optimizer: Any) -> Objects:
        """Give the objects after a look at each, or raise with what to do."""
        given = cls(
            model=_checked_model(model),
            loss=_checked_loss(loss),
            optimizers=_checked_optimizers(optimizer),
            make_batch=batch if callable(batch) else None,
            sample=None if callable(batch) else _checked_sample(batch),
        )
        check_parameters(given.model, given.optimizers)
        return given

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        return next(self.model.parameters()).device

    def batch(self, size: int) -> Any:
        """Give a batch of `size` rows."""
        if self.make_batch is not None:
            batch = self.make_batch(size)
            batches.check_rows(batch, size)
            return batch
        return _tiled(self.sample, size)

    def roots(self) -> list[object]:
        """Give what trials may change: these objects, and what the loss holds besides (a teacher, a queue)."""
        return [self.model, *self.optimizers, *held_by(self.loss)]

    def generators(self) -> list[object]:
        """Give what a batch may be drawn from."""
        return generators_of(self.make_batch)


class LiveSubject:
    """Live objects as the subject of trials."""

    catches_interrupts = False

    def __init__(self, objects: Objects, device: LiveDevice, snapshot: Snapshot, check: Callable[[], None]) -> None:
        self.doing = ""
        self._objects = objects
        self._device = device
        self._snapshot = snapshot
        self._check = check  # raises where a Ctrl-C was swallowed
        self._files = {_file_of(f) for f in (objects.loss, objects.make_batch, type(objects.model).forward)} - {None}

    def parts(self) -> Parts:
        """Give the objects."""
        given = self._objects
        return Parts(model=given.model, optimizers=given.optimizers, make_batch=self._make_batch, loss=self._loss)

    def begin(self) -> None:
        """Put a model that is in eval mode as a whole into training mode."""
        if not self._objects.model.training:
            self._objects.model.train()

    def discard(self) -> None:
        """Go back to the start: the next trial makes gradients and state anew."""
        self._snapshot.restore()

    def place(self, error: BaseException) -> str | None:
        """Give the last line of the user's files that the error came through."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in self._files]
        return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else None

    def _make_batch(self, size: int) -> Any:
        self._check()
        batch = self._objects.batch(size)
        self._device.note([tensor for _, tensor in batches.tensors(batch)])
        return batch

    def _loss(self, model: Any, batch: Any) -> Any:
        self._check()
        return self._objects.loss(model, batch)


def _checked_model(model: Any) -> torch.nn.Module:
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}: give a torch.nn.Module")
    for module in model.modules():
        wrapper = next((kind.__name__ for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS), None)
        if wrapper is not None:
            raise UsageError(
                f"the model is wrapped in {wrapper}, whose ranks would wait for each other: {_BEFORE_WRAPPING}"
            )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        ranks = torch.distributed.get_world_size()
        if ranks > 1:
            raise UsageError(f"{ranks} ranks are connected, and would wait for each other: {_BEFORE_WRAPPING}")
    parameters = list(model.parameters())
    if any(isinstance(p, torch.nn.UninitializedParameter) for p in parameters):
        raise UsageError("the model has lazy parameters without a shape: run one batch through it first")
    if not any(p.requires_grad for p in parameters):
        raise UsageError("the model has no parameters to train: none of them requires a gradient")
    places = sorted({str(p.device) for p in parameters})
    if len(places) > 1:
        raise UsageError(f"the model is spread over {', '.join(places)}: only one device can be probed")
    return model


def _checked_loss(loss: Any) -> Callable[[Any, Any], Any]:
    if not callable(loss):
        raise UsageError(f"the loss is a {type(loss).__name__}: give a function loss(model, batch)")
    return loss  # type: ignore[no-any-return]


def _checked_optimizers(optimizer: Any) -> tuple[torch.optim.Optimizer, ...]:
    optimizers = tuple(as_optimizers(optimizer))
    for each in optimizers:
        if not isinstance(each, torch.optim.Optimizer):
            raise UsageError(
                f"{type(each).__name__} is no torch.optim.Optimizer, whose state plan() could put back: "
                f"derive it from that class, or probe a file"
            )
    return optimizers


def _checked_sample(sample: Any) -> Any:
    instead = "give make_batch(size) in place of a sample batch"
    try:
        if batches.rows(sample) == 0:
            raise UsageError("the sample batch is empty")
        _tiled(sample, 1)
    except UsageError as error:
        raise UsageError(f"{str(error).partition(':')[0]}: {instead}") from None
    return sample


def _tiled(sample: Any, size: int) -> Any:
    # No graph leads back to the user's batch; and the default device is not where rows are counted.
    with torch.no_grad(), torch.device("cpu"):
        return batches.tile(sample, size)


def held_by(function: Any) -> Iterator[object]:
    """Give what a function can reach: itself, what it is bound to, closes over and names."""
    yield function
    if isinstance(function, partial):
        yield from (*function.args, *function.keywords.values())
        yield from held_by(function.func)
    elif inspect.ismethod(function):
        yield from (function.__self__, getattr(function.__self__, "__dict__", None))
    elif inspect.isfunction(function):
        with suppress(TypeError, ValueError):
            found = inspect.getclosurevars(function)
            yield from (*found.nonlocals.values(), *found.globals.values())
    else:
        yield getattr(function, "__dict__", None)


def generators_of(make_batch: Any) -> list[object]:
    """Give the random generators that a function draws from; its data, which may be large, it only reads."""
    return [
        value
        for reached in held_by(make_batch)
        for value in (reached.values() if isinstance(reached, dict) else [reached])
        if isinstance(value, torch.Generator)
    ]


def _file_of(function: Any) -> str | None:
    while isinstance(function, partial):
        function = function.func
    called = function if inspect.isroutine(function) else type(function).__call__
    code = getattr(called, "__code__", None)
    name: str | None = None if code is None else code.co_filename
    return None if name is None or Path(name).is_relative_to(Path(torch.__file__).parent) else name

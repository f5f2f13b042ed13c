"""A subject that is watched: during a trial of it, notes are taken of what runs and of where its tensors are.

The trial says itself what it is doing, by `doing`; hooks say which module runs. Each note bears the number of
allocations so far, by which the allocator's history can be told apart later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from autoaccum.anatomy.labels import Label, labels_of
from autoaccum.anatomy.replay import Sighting
from autoaccum.parts import Parts
from autoaccum.trial import BACKWARD, STEP, Subject

PARAMETER, BUFFER, GRADIENT, OPTIMIZER = "parameter", "buffer", "gradient", "optimizer"


@dataclass(slots=True)
class Note:
    """What runs from here on, up to the next note."""

    number: int  # of allocations so far
    doing: str  # nothing before the first batch
    update: int  # counted from 0
    module: nn.Module | None = None  # the innermost that runs


class Watched:
    """Stands in front of a subject; `close` takes its hooks away."""

    def __init__(self, subject: Subject, device: torch.device, *, compiled: bool) -> None:
        self.catches_interrupts = subject.catches_interrupts
        self.labels: dict[nn.Module, Label] = {}
        self.sightings: list[Sighting] = []
        self._subject = subject
        self._device = device
        self._compiled = compiled
        self._parts: Parts | None = None
        self._began = self._counter()
        self._notes = [Note(0, "", 0)]
        self._running: list[nn.Module] = []
        self._order: dict[nn.Module, int] = {}  # in which modules are first called
        self._hooks = ExitStack()

    @property
    def doing(self) -> str:
        """For the message of an error."""
        return self._subject.doing

    @doing.setter
    def doing(self, words: str) -> None:
        self._subject.doing = words
        self.look()
        self._running.clear()
        last = self._notes[-1]
        self._notes.append(Note(self.number, words, last.update + (last.doing == STEP)))

    @property
    def opaque(self) -> bool:
        """Whether the model as a whole is compiled: then its hooks do not tell what runs."""
        return self._compiled or any(label.traced for label in list(self.labels.values())[:1])

    @property
    def number(self) -> int:
        """How many allocations there were so far."""
        return self._counter() - self._began

    def parts(self) -> Parts:
        """Give what is trained, with hooks on its modules."""
        parts = self._subject.parts()
        if self._parts is None:
            self._parts = parts
            self.labels = labels_of(parts.model)
            for module, label in self.labels.items():
                if not (label.traced or self._compiled or isinstance(module, torch.jit.ScriptModule)):
                    self._hooks.callback(module.register_forward_pre_hook(self._enter, prepend=True).remove)
                    # A checkpoint breaks its second forward pass off, by an exception, once it has everything.
                    self._hooks.callback(module.register_forward_hook(self._leave, always_call=True).remove)
        return parts

    def begin(self) -> None:
        """Make a trial independent of the ones before it."""
        self._subject.begin()

    def discard(self) -> None:
        """Drop what a broken-off update left behind."""
        self._subject.discard()

    def place(self, error: BaseException) -> str | None:
        """Give the last place in the user's own code that the error came through."""
        return self._subject.place(error)

    def close(self) -> None:
        """Take the hooks away."""
        self._hooks.close()

    def look(self) -> None:
        """Note where the tensors are that have a name."""
        if self._parts is None:
            return
        number = self.number
        for kind, tensor in _known(self._parts):
            self.sightings.extend((number, address, kind) for address in _addresses(tensor, self._device))

    def at(self, number: int) -> Note:
        """Give what ran as this allocation was made; nothing did yet at number 0, for what was there before."""
        later = bisect_right(self._notes, number - 1, key=lambda note: note.number)
        return self._notes[max(0, later - 1)]

    def _counter(self) -> int:
        return int(torch.cuda.memory_stats_as_nested_dict(self._device)["allocation"]["all"]["allocated"])

    def _enter(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        last = self._notes[-1]
        if last.doing == BACKWARD and not self._running and last.module is None:
            self._close_gap(module)
        self._running.append(module)
        self._order.setdefault(module, len(self._order))
        self._note(module)

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        if torch.compiler.is_compiling() or module not in self._running:
            return
        while self._running.pop() is not module:
            pass
        self._note(self._running[-1] if self._running else None)

    def _note(self, module: nn.Module | None) -> None:
        last = self._notes[-1]
        self._notes.append(Note(self.number, last.doing, last.update, module))

    def _close_gap(self, after: nn.Module) -> None:
        """Give what a checkpoint computes between two modules to the innermost one around both.

        That one may not be called a second time, but its forward alone, of which no hook tells. Modules that follow
        each other as in the forward pass are of one checkpoint: from checkpoint to checkpoint, it goes backwards.
        """
        gap, before = self._notes[-1], self._notes[-2].module
        if before is None or self._order.get(before, 0) >= self._order.get(after, 0):
            return
        within = [self.labels[each].name for each in (before, after)]
        called = {each: self.labels[each].name for each in self._order}
        around = [each for each, name in called.items() if all(one.startswith(name and f"{name}.") for one in within)]
        gap.module = max(around, key=lambda each: len(called[each]), default=None)


def _known(parts: Parts) -> Iterator[tuple[str, torch.Tensor]]:
    """Give each tensor that trains, is trained, or is kept for it, with its kind."""
    groups = [group for optimizer in parts.optimizers for group in getattr(optimizer, "param_groups", ())]
    trained = chain.from_iterable(group.get("params", ()) for group in groups)
    for parameter in {id(each): each for each in chain(parts.model.parameters(), trained)}.values():
        yield PARAMETER, parameter
        if parameter.grad is not None:
            yield GRADIENT, parameter.grad
    yield from ((BUFFER, buffer) for buffer in parts.model.buffers())
    for optimizer in parts.optimizers:
        yield from ((OPTIMIZER, tensor) for tensor in _within(getattr(optimizer, "state", None)))


def _within(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(_within, value.values()))
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(_within, value))


def _addresses(tensor: torch.Tensor, device: torch.device) -> Iterable[int]:
    """Give where the tensor's memory begins; several places where it is made of other tensors."""
    if tensor.layout is torch.sparse_coo:
        inner = [tensor._indices(), tensor._values()]
    elif hasattr(tensor, "__tensor_flatten__"):
        inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    else:
        return [tensor.untyped_storage().data_ptr()] if tensor.device == device else []
    return list(chain.from_iterable(_addresses(each, device) for each in inner))

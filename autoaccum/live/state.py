"""The user's live objects as they are now, to be put back bit for bit.

From the roots (model, optimizers, what the loss holds) everything is reached that trials can change: the attributes of
modules and optimizers, the containers in them, tensors with their values, gradients, hooks and flags. Objects keep
their identity and tensors their memory; the values are kept on the host, so that a GPU's budget is not touched. What
is of no kind known here is not looked into.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from autoaccum.errors import AutoaccumError, DeviceError

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")  # dicts that a tensor gets with its first hook
_Container = dict[Any, Any] | list[Any] | set[Any] | deque[Any]
_KINDS = (
    torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.Generator, dict, list, deque, set, tuple,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor, what it pointed to, and its gradient."""

    tensor: torch.Tensor
    data: torch.Tensor
    requires_grad: bool
    grad: torch.Tensor | None
    had_hooks: tuple[bool, ...]


class Snapshot:
    """What hangs on the roots, at the moment when it is made."""

    def __init__(self, *roots: object) -> None:
        self._containers: list[tuple[_Container, Any]] = []
        self._tensors: list[_Tensor] = []
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._others: list[tuple[torch.Tensor, torch.Tensor]] = []  # sparse ones, which have no storage of their own
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._seen: dict[int, object] = {}  # holds them: an id is good for as long as its object lives
        with torch.no_grad():
            self._save_all(roots)

    def restore(self) -> None:
        """Put everything back; may be called again, and after having been interrupted.

        One thing that cannot be put back keeps none of the others from it; what it was is raised at the end.
        """
        lost: list[str] = []
        for container, content in self._containers:
            _attempt(lost, f"a {type(container).__name__}", _refill, container, content)
        with torch.no_grad():
            for storage, value in self._storages.values():
                _attempt(lost, f"{value.nbytes()} bytes of a tensor", _rewrite, storage, value)
            for tensor, kept in self._others:
                _attempt(lost, _name(tensor), tensor.copy_, kept)
            for saved in self._tensors:
                _attempt(lost, _name(saved.data), _reattach, saved)
        for generator, state in self._generators:
            _attempt(lost, "a random generator", generator.set_state, state)
        if lost:
            more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise AutoaccumError(f"{lost[0]}{more}")

    def _save_all(self, roots: tuple[object, ...]) -> None:
        waiting = deque(roots)
        while waiting:
            value = waiting.popleft()
            if id(value) in self._seen:
                continue
            parts = list(self._save(value))
            if parts:
                self._seen[id(value)] = value
                waiting.extend(
                    part for part in parts if isinstance(part, _KINDS)
                )  # a list may hold millions of numbers

    def _save(self, value: object) -> Iterator[object]:
        """Save one object; give what else hangs on it, itself included if it need not be seen again."""
        if isinstance(value, torch.Tensor):
            yield value
            yield from self._save_tensor(value)
        elif isinstance(value, torch.nn.Module):
            yield vars(value)
            yield from (*value.parameters(), *value.buffers())  # a scripted module keeps them elsewhere
        elif isinstance(value, torch.optim.Optimizer):
            yield vars(value)
        elif isinstance(value, torch.Generator):
            self._generators.append((value, value.get_state()))
            yield value
        elif isinstance(value, dict) and not _is_namespace(value):
            self._containers.append((value, dict(value)))
            yield from (value, *value.values())
        elif isinstance(value, list | deque):
            self._containers.append((value, list(value)))
            yield from (value, *value)
        elif isinstance(value, set):
            self._containers.append((value, set(value)))
            yield value
        elif isinstance(value, tuple):
            yield from value

    def _save_tensor(self, tensor: torch.Tensor) -> Iterator[object]:
        if tensor.is_leaf:
            had_hooks = tuple(getattr(tensor, name, None) is not None for name in _HOOKS)
            saved = _Tensor(tensor, tensor.detach(), tensor.requires_grad, tensor.grad, had_hooks)
            self._tensors.append(saved)
            yield from (saved.grad, *(getattr(tensor, name, None) for name in _HOOKS))
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            yield from (getattr(tensor, name) for name in names)
        elif tensor.layout is not torch.strided:
            self._others.append((tensor, tensor.detach().cpu().clone()))
        elif tensor.device.type != "meta":
            storage = tensor.untyped_storage()
            if storage._cdata not in self._storages:
                # The whole storage: tied and expanded tensors come out right, and no version counter moves.
                self._storages[storage._cdata] = storage, _host_copy(storage)


def restore_all(*restores: Callable[[], None]) -> None:
    """Call each, whatever becomes of the others; raise with what could not be put back, and what to do."""
    lost: list[str] = []
    for restore in restores:
        try:
            restore()
        except AutoaccumError as error:
            lost.append(str(error))
        except Exception as error:
            lost.append(_first_line(error))
    if not lost:
        return
    if not _device_answers():
        raise DeviceError(f"the device failed, and what the model held is lost: start a new process ({lost[0]})")
    raise AutoaccumError(f"not everything could be put back: make model and optimizer anew (lost: {'; '.join(lost)})")


def _device_answers() -> bool:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
    return True


def _attempt(lost: list[str], what: str, put_back: Callable[..., object], *given: Any) -> None:
    try:
        put_back(*given)
    except Exception as error:
        lost.append(f"{what}: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _name(tensor: torch.Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)}"


def _is_namespace(value: dict[Any, Any]) -> bool:
    """Whether it is a dict of Python's own, in which what trials import must stay."""
    return value is sys.modules or "__builtins__" in value


def _host_copy(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    kept = torch.UntypedStorage(storage.nbytes())  # type: ignore[no-untyped-call]
    kept.copy_(storage)
    return kept


def _rewrite(storage: torch.UntypedStorage, value: torch.UntypedStorage) -> None:
    if storage.nbytes() != value.nbytes():
        storage.resize_(value.nbytes())
    # What did not change is not written: it may be a read-only file that is mapped into memory.
    if storage.device.type != "cpu" or not torch.equal(_bytes(storage), _bytes(value)):
        storage.copy_(value)


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def _reattach(saved: _Tensor) -> None:
    tensor = saved.tensor
    if not tensor.is_leaf:
        tensor.detach_()  # it was written to in place, with gradients: a graph hangs on it now
    if tensor.layout is torch.strided and _points_to(tensor) != _points_to(saved.data):
        tensor.data = saved.data
    if tensor.requires_grad != saved.requires_grad:
        tensor.requires_grad_(saved.requires_grad)
    if tensor.grad is not saved.grad:
        tensor.grad = saved.grad
    for name, had in zip(_HOOKS, saved.had_hooks, strict=True):
        if not had and (hooks := getattr(tensor, name, None)) is not None:
            hooks.clear()


def _points_to(tensor: torch.Tensor) -> tuple[object, ...]:
    if is_traceable_wrapper_subclass(tensor):
        return ()
    return tensor.untyped_storage()._cdata, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


def _refill(container: _Container, content: Any) -> None:
    if isinstance(container, set):
        if container != content:
            container.clear()
            container.update(content)
    elif isinstance(container, dict):
        if not _same((*container.keys(), *container.values()), (*content.keys(), *content.values())):
            container.clear()
            container.update(content)
    elif not _same(container, content):
        container.clear()
        container.extend(content)


def _same(now: Any, before: Any) -> bool:
    return len(now) == len(before) and all(new is old for new, old in zip(now, before, strict=True))

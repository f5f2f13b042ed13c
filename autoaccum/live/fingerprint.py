"""What a plan depends on, as short texts that can be compared: a cached plan holds for the same ones only.

Values do not matter to memory: not the weights, not the learning rate, not how many rows the sample has.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType
from typing import Any

import torch

from autoaccum._version import __version__
from autoaccum.batch import rows
from autoaccum.errors import UsageError
from autoaccum.live.ambient import autocast
from autoaccum.live.objects import Objects
from autoaccum.records import DeviceInfo, Request

_RATES = ("params", "lr", "initial_lr", "max_lr", "min_lr", "param_names")
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def fingerprint(objects: Objects, request: Request, device: DeviceInfo) -> dict[str, str]:
    """Give a text for each thing that the plan depends on, by the name that a person knows it by."""
    batch = objects.sample if objects.make_batch is None else objects.batch(2)
    return {
        "model": _digest(_structure(objects.model)),
        "optimizer": _digest([_optimizer(optimizer) for optimizer in objects.optimizers]),
        "loss": _digest(_source(objects.loss)),
        "batch": _digest(_signature(batch, _rows(batch))),
        "device": f"{device.kind} {device.name} {device.total_bytes}",
        "memory_budget": str(request.memory_budget),
        "target_batch": str(request.target_batch),
        "world_size": str(request.world_size),
        "split": request.split,
        "versions": f"{__version__} {torch.__version__} {platform.python_version()} {torch.version.cuda}",
        "autocast": json.dumps(autocast()),
        "settings": json.dumps(_settings(objects.model)),
    }


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _settings(model: torch.nn.Module) -> list[Any]:
    """Give what is set outside of the objects and changes which kernels run, or how memory is handed out."""
    cuda = torch.backends.cuda
    attention: tuple[Callable[[], bool], ...] = (
        cuda.flash_sdp_enabled,
        cuda.mem_efficient_sdp_enabled,
        cuda.math_sdp_enabled,
        cuda.cudnn_sdp_enabled,
    )
    compiled = [name for name, module in model.named_modules() if _is_compiled(module)]
    allocator = [os.environ.get(name) for name in _ALLOCATOR]
    return [torch.backends.cudnn.benchmark, [enabled() for enabled in attention], allocator, compiled]


def _is_compiled(module: torch.nn.Module) -> bool:
    # The wrapper goes by its name: to import its class would load the compiler.
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"


def _structure(model: torch.nn.Module) -> list[Any]:
    """Give classes, modes and switches of the modules, and shapes and types of what they hold."""
    modules = [
        (name, _name(type(module)), module.training, _settings_of(module)) for name, module in model.named_modules()
    ]
    kinds = {type(module): None for module in model.modules()}  # each is read once, in the order of the modules
    held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    tensors = [(name, list(t.shape), str(t.dtype), t.requires_grad) for name, t in held]
    return [modules, [_source(kind) for kind in kinds], tensors]


def _settings_of(module: torch.nn.Module) -> list[Any]:
    switches = {key: value for key, value in vars(module).items() if isinstance(value, int | str)}  # and bool
    described = ""
    with suppress(Exception):  # the user's own code
        described = module.extra_repr()
    return [switches, described]


def _optimizer(optimizer: torch.optim.Optimizer) -> list[Any]:
    groups = [
        {
            "params": [(list(p.shape), str(p.dtype)) for p in group["params"]],
            **{key: _switch(value) for key, value in group.items() if key not in _RATES},
        }
        for group in optimizer.param_groups
    ]
    return [_source(type(optimizer)), groups]


def _switch(value: Any) -> Any:
    """Give a setting as far as memory depends on it: a number counts as zero or not."""
    if isinstance(value, tuple | list):
        return [_switch(item) for item in value]
    if isinstance(value, str) or value is None:
        return value
    return bool(value) if isinstance(value, bool | int | float) else type(value).__qualname__


def _source(function: Any) -> Any:
    """Give the source of a function, a class or an object that is called, else its bytecode."""
    if isinstance(function, torch.nn.Module):
        return _structure(function)
    if isinstance(function, partial):
        keywords = {key: _plain(value) for key, value in function.keywords.items()}
        return [_source(function.func), [_plain(value) for value in function.args], keywords]
    if inspect.ismethod(function):
        return [_source(function.__func__), _source(type(function.__self__))]
    if isinstance(function, type):
        return [_name(function), [_class_text(kind) for kind in function.__mro__ if not _is_known(kind)]]
    if inspect.isfunction(function):
        closed = [_plain(cell) for cell in _cells(function)]
        return [
            function.__qualname__,
            _text(function),
            [_plain(value) for value in function.__defaults__ or ()],
            closed,
        ]
    settings = {key: _plain(value) for key, value in getattr(function, "__dict__", {}).items()}
    return [getattr(function, "__qualname__", ""), _source(type(function)), settings]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_known(kind: type) -> bool:
    """Whether a class came with torch or Python, whose versions say enough."""
    package = kind.__module__.partition(".")[0]
    return package == "torch" or package in sys.stdlib_module_names


def _class_text(kind: type) -> list[Any]:
    """Give the source of a class, and of its methods: they may have been replaced, or typed in without a file."""
    source = ""
    with suppress(OSError, TypeError):
        source = inspect.getsource(kind)
    return [source, {name: _bytecode(f.__code__) for name, f in vars(kind).items() if inspect.isfunction(f)}]


def _text(function: Any) -> str:
    with suppress(OSError, TypeError):
        return inspect.getsource(function)
    code = getattr(function, "__code__", None)
    return _bytecode(code) if isinstance(code, CodeType) else str(getattr(function, "__qualname__", type(function)))


def _bytecode(code: CodeType) -> str:
    return json.dumps([code.co_code.hex(), [_constant(c) for c in code.co_consts], code.co_names])


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):
        return str(sorted(map(repr, value)))  # the order of strings in it is another one in each process
    return _bytecode(value) if isinstance(value, CodeType) else repr(value)


def _cells(function: Any) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            found.append(cell.cell_contents)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, torch.nn.Module):
        return _structure(value)
    if inspect.isfunction(value):
        return _text(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _rows(batch: Any) -> int | None:
    try:
        return rows(batch)
    except UsageError:
        return None


def _signature(value: Any, size: int | None) -> Any:
    """Give nesting, shapes without the rows, and types."""
    if isinstance(value, torch.Tensor):
        shape = ["rows", *value.shape[1:]] if value.dim() > 0 and value.shape[0] == size else list(value.shape)
        return [shape, str(value.dtype), value.device.type]
    kind = type(value).__qualname__
    if isinstance(value, Mapping):
        return [kind, [[str(key), _signature(part, size)] for key, part in value.items()]]
    if isinstance(value, list | tuple) and any(
        isinstance(part, torch.Tensor | Mapping | list | tuple) for part in value
    ):
        return [kind, [_signature(part, size) for part in value]]
    if hasattr(value, "__dataclass_fields__"):
        return [kind, [[name, _signature(getattr(value, name), size)] for name in value.__dataclass_fields__]]
    return kind

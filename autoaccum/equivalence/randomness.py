"""Random draws, found and held still: each is replaced by its mean, and named with its layer.

A dispatch mode sees every operation below autograd, and torch tags those that draw. Dropout held at
its mean is the identity, to the bit; what follows from the draws is the same in every run and split.
Casts to fewer bits, as in a normalisation in float32, are left out too: what they round is noise here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_Arguments = dict[str, Any]

# The mean of each draw, from its arguments by name.
_MEANS: dict[str, Callable[[_Arguments], Any]] = {
    "bernoulli": lambda a: a.get("p", a["self"]),
    "uniform": lambda a: (a["from"] + a["to"]) / 2,
    "rand": lambda a: 0.5,
    "rand_like": lambda a: 0.5,
    "randn": lambda a: 0.0,
    "randn_like": lambda a: 0.0,
    "normal": lambda a: a.get("mean", 0.0),
    "randint": lambda a: (a.get("low", 0) + a["high"]) // 2,
    "randint_like": lambda a: (a.get("low", 0) + a["high"]) // 2,
    "random": lambda a: (a.get("from", 0) + (a.get("to") or 0)) // 2,
    "exponential": lambda a: 1 / a["lambd"],
    "geometric": lambda a: 1 / a["p"],
    "log_normal": lambda a: math.exp(a["mean"] + a["std"] ** 2 / 2),
    "cauchy": lambda a: a["median"],  # it has no mean
    "poisson": lambda a: a["self"],
    "_standard_gamma": lambda a: a["self"],
}
_OFF = ("dropout_p", "dropout")  # arguments of attention and recurrent layers, and of their backward passes


def label(name: str, module: torch.nn.Module) -> str:
    """Give a module as people look for it, such as "layer 1 (BatchNorm2d)"."""
    return f"layer {name} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"


class Still(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Holds the draws of `model` and its loss at their means, in `dtype`, and remembers what it saw."""

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.random_ops: dict[str, None] = {}  # in order of appearance
        self.unheld: dict[str, None] = {}  # draws that are not in the table
        self.reduced = False  # whether anything was computed in less than `dtype` all the same
        self._dtype = dtype
        self._model = model
        self._places: list[str] = []
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        for name, module in self._model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(self._entering(label(name, module))))
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._places.clear()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, and put the mean in the place of what it drew."""
        kwargs = kwargs or {}
        if self._dtype is None:
            return self._run(func, args, kwargs)
        if _below(kwargs.get("dtype"), self._dtype):
            kwargs = {**kwargs, "dtype": self._dtype}
        result = self._run(func, args, kwargs)
        # A rounded scalar does no harm: it is the same for every row.
        parts = result if isinstance(result, tuple | list) else (result,)
        tensors = (part for part in parts if isinstance(part, torch.Tensor) and part.dim() > 0)
        self.reduced = self.reduced or any(_below(tensor.dtype, self._dtype) for tensor in tensors)
        return result

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__.rstrip("_") if hasattr(func, "overloadpacket") else str(func)
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if name == "native_dropout_backward":
            return args[0].clone()  # its forward pass was the identity
        off = [
            a.name for a in func._schema.arguments if a.name in _OFF or (name[:5] == "rrelu" and a.name == "training")
        ]
        if not draws and not off:
            return func(*args, **kwargs)
        given = _by_name(func, args, kwargs)
        if off:
            if draws and any(given.get(each) for each in off):
                self._saw(self.random_ops, func)
            args = tuple(_quiet(a.name, off, value) for a, value in zip(func._schema.arguments, args, strict=False))
            return func(*args, **{key: _quiet(key, off, value) for key, value in kwargs.items()})
        result = func(*args, **kwargs)
        if name in ("native_dropout", "_fused_dropout"):
            result[0].copy_(given["input"] if "input" in given else given["self"])
            result[1].fill_(1)
        elif name == "randperm":
            result.copy_(torch.arange(given["n"] - 1, -1, -1))  # the identity would hide that rows are mixed
        elif name == "multinomial":
            likely = given["self"].topk(1 if given["replacement"] else result.shape[-1]).indices
            result.copy_(likely.expand_as(result))
        elif name in _MEANS:
            mean = _MEANS[name](given)
            result.copy_(mean) if isinstance(mean, torch.Tensor) else result.fill_(mean)
        else:
            self._saw(self.unheld, func)
        self._saw(self.random_ops, func)
        return result

    def _saw(self, where: dict[str, None], func: Any) -> None:
        where[f"{func.overloadpacket.__name__} in {self._places[-1] if self._places else 'the loss'}"] = None

    def _entering(self, place: str) -> Callable[..., None]:
        return lambda module, args: self._places.append(place)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._places:
            self._places.pop()


def _by_name(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
    given = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    given.update(zip((a.name for a in func._schema.arguments), args, strict=False))
    return {**given, **kwargs}


def _quiet(name: str, off: list[str], value: Any) -> Any:
    return type(value)(0) if name in off else value


def _below(dtype: torch.dtype | None, wanted: torch.dtype) -> bool:
    """Whether `dtype` is a floating type of fewer bits than is wanted."""
    return dtype is not None and dtype.is_floating_point and torch.finfo(dtype).bits < torch.finfo(wanted).bits

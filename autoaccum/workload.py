"""The user's contract: a plain Python file with four functions, or a `Workload` in it.

    def build_model(): ...              # required: an nn.Module
    def make_batch(size): ...           # required: one batch of `size` samples, on the CPU
    def loss(model, batch): ...         # a mean loss, or (loss_sum, count)
    def build_optimizer(model): ...     # default: AdamW

`FILE.py:NAME` names a `Workload`, or a function returning one, instead. Without `loss` the model's
own `.loss` is taken (Hugging Face style), else cross entropy or MSE on (input, target).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autoaccum.errors import UsageError, WorkloadError

if TYPE_CHECKING:
    import torch


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Give the default optimizer: AdamW over what asks for a gradient."""
    import torch

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise WorkloadError("build_model() returned a model without parameters to train")
    return torch.optim.AdamW(trained)


def default_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Give the model's own `.loss`, else cross entropy (integer targets) or MSE on (input, target)."""
    import torch
    from torch.nn import functional

    if isinstance(batch, Mapping):
        found = _own_loss(model(**batch))
        if found is None:
            raise WorkloadError("the model returned no .loss for its dict batch: define loss(model, batch)")
        return found
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise WorkloadError("without a loss(model, batch) of your own, a batch is (input, target) or a dict")
    inputs, target = batch
    if not isinstance(target, torch.Tensor):
        raise WorkloadError(f"the target is a {type(target).__name__}, not a tensor: define loss(model, batch)")
    output = model(inputs)
    found = _own_loss(output)
    if found is not None:
        return found
    if not isinstance(output, torch.Tensor):
        raise WorkloadError(f"the model returned {type(output).__name__}: define loss(model, batch)")
    if target.is_floating_point():
        return functional.mse_loss(output, target)
    if output.dim() == target.dim() + 1 and target.dim() > 1 and output.shape[:-1] == target.shape:
        output, target = output.flatten(0, -2), target.flatten()  # (batch, time, classes) of a language model
    return functional.cross_entropy(output, target)


def _own_loss(output: Any) -> torch.Tensor | None:
    loss: torch.Tensor | None = getattr(output, "loss", None)
    return loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What is trained: a model, its batches, its loss and its optimizer, each as a function.

    >>> workload = Workload(
    ...     build_model=lambda: torch.nn.Linear(8, 2),
    ...     make_batch=lambda size: (torch.randn(size, 8), torch.randint(2, (size,))),
    ... )
    """

    build_model: Callable[[], torch.nn.Module]
    make_batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Any] = default_loss
    build_optimizer: Callable[[Any], Any] = adamw


def split_spec(spec: str) -> tuple[Path, str | None]:
    """Split "FILE.py[:NAME]" and see that the file is there."""
    head, colon, name = spec.rpartition(":")
    path, wanted = (Path(head), name) if colon and head.endswith(".py") else (Path(spec), None)
    if wanted == "":
        raise UsageError(f"{spec} names nothing: write {head}, or {head}:NAME")
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give the Python file that defines build_model and make_batch")
    if not path.is_file():
        raise UsageError(f"there is no file {path}: give the Python file that defines build_model and make_batch")
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file: give a .py file that defines build_model and make_batch")
    return path, wanted


def check_syntax(path: Path) -> None:
    """Raise where the file cannot be compiled, before anything is started for it."""
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise WorkloadError(f"{path}:{error.lineno}: syntax error: {error.msg}") from error
    except ValueError as error:  # a null byte
        raise WorkloadError(f"{path} is not Python source: {error}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def load(spec: str) -> Workload:
    """Run the file of "FILE.py[:NAME]" and give the workload in it."""
    path, name = split_spec(spec)
    module = _import_file(path)
    if name is not None:
        return _named(module, path, name)
    found = {key: getattr(module, key, None) for key in ("build_model", "make_batch", "loss", "build_optimizer")}
    for key in ("build_model", "make_batch"):
        if found[key] is None:
            raise WorkloadError(f"{path} defines no {key}(){_instead(module, path)}")
    for key, value in found.items():
        if value is not None and not callable(value):
            raise WorkloadError(f"{key} in {path} is not a function")
    return Workload(**{key: value for key, value in found.items() if value is not None})


def _import_file(path: Path) -> ModuleType:
    """Import the file as Python runs a script: its own folder first on the path."""
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses and pickle look for it
    spec.loader.exec_module(module)
    return module


def _instead(module: ModuleType, path: Path) -> str:
    """Give the end of a message: what the file holds instead of what was looked for."""
    names = [name for name, value in vars(module).items() if isinstance(value, Workload)]
    return f"; it holds {', '.join(names)}: write {path}:{names[0]}" if names else ": see the workload contract"


def _named(module: ModuleType, path: Path, name: str) -> Workload:
    value = getattr(module, name, None)
    if value is None:
        raise WorkloadError(f"{path} defines no {name}{_instead(module, path)}")
    if not isinstance(value, Workload) and callable(value):
        value = value()
    if not isinstance(value, Workload):
        raise WorkloadError(f"{name} in {path} is neither an autoaccum.Workload nor a function returning one")
    return value

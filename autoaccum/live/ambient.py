"""What the user's process has set for all of torch: random generators, precision, autocast, the current device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode

from autoaccum.device.cuda import memory_fraction
from autoaccum.generators import Generators

_Setting = tuple[Callable[[], Any], Callable[[Any], Any]]


class Ambient:
    """The settings and the random generators, as they are at the moment when it is made."""

    def __init__(self) -> None:
        # A process that has not used CUDA yet is not made to.
        count = torch.cuda.device_count() if _uses_cuda() else 0
        self._generators = Generators.now([torch.device("cuda", index) for index in range(count)])
        self._modes = len(_get_current_dispatch_mode_stack())
        self._settings = [(get, put, value) for get, put in _settings() if (value := _ask(get)) is not None]

    def restore(self) -> None:
        """Put everything back; a setting is touched only if it has changed."""
        # A Ctrl-C may have hit a mode between its beginning and the block that ends it.
        while len(_get_current_dispatch_mode_stack()) > self._modes:
            _pop_mode()
        torch.clear_autocast_cache()
        for get, put, value in self._settings:
            if _ask(get) != value:
                put(value)
        self._generators.restore()


def autocast() -> dict[str, str | None]:
    """Give the dtype to which autocast casts on each kind of device; None where it is off."""
    return {
        kind: str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
        for kind in ("cpu", "cuda")
    }


def _ask(get: Callable[[], Any]) -> Any:
    """Give a setting; None if this torch cannot tell, as when old and new ways to set TF32 were mixed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(AttributeError, RuntimeError):
            return get()
    return None


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _settings() -> list[_Setting]:
    cudnn, cuda = torch.backends.cudnn, torch.backends.cuda
    settings: list[_Setting] = [
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()), _set_anomaly),
        (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        (cuda.math_sdp_enabled, cuda.enable_math_sdp),
        (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    ]
    for kind in ("cpu", "cuda"):
        settings.append((lambda kind=kind: torch.is_autocast_enabled(kind), _with(torch.set_autocast_enabled, kind)))  # type: ignore[misc]
        settings.append((lambda kind=kind: torch.get_autocast_dtype(kind), _with(torch.set_autocast_dtype, kind)))  # type: ignore[misc]
    for owner, names in (
        (cudnn, ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")),
        (
            cuda.matmul,
            ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"),
        ),
    ):
        settings += [_attribute(owner, name) for name in names]
    if _uses_cuda():
        settings.append((torch.cuda.current_device, torch.cuda.set_device))
        settings += [_fraction(index) for index in range(torch.cuda.device_count())]
    return settings


def _with(put: Callable[[str, Any], None], kind: str) -> Callable[[Any], None]:
    return lambda value: put(kind, value)


def _attribute(owner: object, name: str) -> _Setting:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))


def _fraction(index: int) -> _Setting:
    device = torch.device("cuda", index)
    return (lambda: memory_fraction(device)), (lambda to: torch.cuda.set_per_process_memory_fraction(to, device))


def _set_anomaly(value: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(*value)

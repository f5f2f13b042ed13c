"""torch's switches of TF32, which changed their names.

The old ones (`allow_tf32`) are set, for they keep the new ones (`fp32_precision`, from 2.9 on) in step; the other way
round, everything that still reads the old ones raises, torch.compile in 2.13 among it. 2.9 warns of the old ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

_NEW = hasattr(torch.backends.cudnn, "conv")


def is_on() -> bool:
    """Whether both products of matrices and convolutions use TF32."""
    return all(_read(switch) for switch in _switches())


def turn_on() -> Callable[[], None]:
    """Let both use it; give what sets the switches back."""
    turned = [switch for switch in _switches() if not _read(switch)]
    precise = [(place, place.fp32_precision) for switch in turned for place in _places(switch)]
    for switch in turned:
        _write(switch, True)

    def undo() -> None:
        for switch in turned:
            _write(switch, False)
        for place, before in precise:  # "none" is not quite "ieee": it follows the setting for all
            place.fp32_precision = before

    return undo


def _switches() -> tuple[Any, Any]:
    return torch.backends.cuda.matmul, torch.backends.cudnn


def _places(switch: Any) -> list[Any]:
    """Give where the new names keep what the old switch sets."""
    if not _NEW:
        return []
    return [switch.conv, switch.rnn] if switch is torch.backends.cudnn else [switch]


def _read(switch: Any) -> bool:
    return all(place.fp32_precision == "tf32" for place in _places(switch)) if _NEW else bool(switch.allow_tf32)


def _write(switch: Any, value: bool) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Please use the new API")
        switch.allow_tf32 = value

"""What-if variants of a workload that are no knobs of a plan: the user's own code would have to change.

apply.py       a workload with them
fused_loss.py  cross entropy as a fused kernel holds it
"""

from __future__ import annotations

from collections.abc import Iterable

from autoaccum.errors import UsageError
from autoaccum.units import did_you_mean

__all__ = ["ALTERATIONS", "check"]

SGD, FUSED_LOSS = "sgd", "fused_loss"
ALTERATIONS = {  # with words for people
    SGD: "SGD without momentum",
    FUSED_LOSS: "a fused cross entropy",
}


def check(names: Iterable[str], device_kind: str) -> None:
    """Raise unless these can be made on a device of this kind."""
    for name in names:
        if name not in ALTERATIONS:
            meant = did_you_mean(name, tuple(ALTERATIONS))
            raise UsageError(f'unknown alteration "{name}": {meant}known are {", ".join(ALTERATIONS)}')
    if FUSED_LOSS in names and device_kind != "virtual":
        raise UsageError(f"{FUSED_LOSS} takes the memory of a fused loss and computes nothing: it needs a virtual GPU")

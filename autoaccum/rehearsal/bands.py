"""How far a prediction may be off, by what the model computes with: as measured, and stated as such.

What torch reserves is known to the byte. What it cannot know is which workspaces a real cuDNN asks for, and that
differs between models: hardly any where matrix products rule, much where dense convolutions do. The bands come from
the calibration half of benchmarks/rehearse; of the other half, nine of ten fell into them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoaccum.anatomy.traits import Traits
from autoaccum.records import Record
from autoaccum.rehearsal.constants import Constant


@dataclass(frozen=True, kw_only=True, slots=True)
class Band(Record):
    """The errors of nine of ten models of a kind, as shares of what torch reserves."""

    kind: str
    low: float  # below the prediction, at or under zero
    high: float  # above it
    margin: float  # above it, that a plan leaves free
    models: int  # that it was found from

    @property
    def words(self) -> str:
        """The band in a sentence."""
        held = f"{self.low:+.1%} to {self.high:+.1%} from the prediction"
        return f"{self.kind}: 9 of 10 vision models of this kind, in fp32 on an A100, peaked {held}"


# As benchmarks/rehearse finds them: from the 3rd to the 97th of a hundred errors, and the 90th for the margin.
PRODUCTS = Band(kind="mostly matrix products", low=-0.098, high=0.077, margin=0.042, models=77)
MIXED = Band(kind="of several kinds", low=-0.066, high=0.100, margin=0.066, models=104)
DENSE = Band(kind="mostly dense convolutions", low=-0.120, high=0.154, margin=0.067, models=37)

_MOST_PRODUCTS = 0.7  # of the floating-point operations, from which on products rule
_MOST_DENSE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast(Record):
    """A predicted peak on the device, with its band."""

    peak_bytes: int
    low_bytes: int
    high_bytes: int
    safe_bytes: int  # the peak and the margin that a plan leaves


def band_for(traits: Traits) -> Band:
    """Give the band of models that compute as this one does."""
    total = sum(traits.flops.values())
    if total <= 0:
        return MIXED
    if (traits.flops.get("matmul", 0.0) + traits.flops.get("attention", 0.0)) / total >= _MOST_PRODUCTS:
        return PRODUCTS
    return DENSE if traits.flops.get("dense_convolution", 0.0) / total >= _MOST_DENSE else MIXED


def forecast(reserved: int, band: Band, constant: Constant) -> Forecast:
    """Give what a size that reserves so much will hold on a card; the errors of both parts are independent."""
    peak = reserved + constant.typical_bytes
    below = math.hypot(reserved * band.low, constant.typical_bytes - constant.low_bytes)
    above = math.hypot(reserved * band.high, constant.high_bytes - constant.typical_bytes)
    margin = math.hypot(reserved * band.margin, constant.high_bytes - constant.typical_bytes)
    return Forecast(
        peak_bytes=peak,
        low_bytes=round(peak - below),
        high_bytes=round(peak + above),
        safe_bytes=round(peak + margin),
    )

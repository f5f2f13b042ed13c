"""The cases of on_virtual_gpu.py: how long an update takes, by a formula with seeded numbers. Without torch.

The curves over the size of a micro-batch, each beside a fixed time for every micro-step:

saturating  a sample always takes the same: the larger, the faster
hump        beyond some size samples grow slower with every doubling, as where a cache overflows
step        beyond some size every sample is slower, as where a library takes another algorithm
waves       only whole waves of samples are computed, as on a GPU with so many processors: multiples are fast
flat        the fixed time is small: all sizes are much alike
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from autoaccum.records import Knobs

GFLOPS = 1  # of the device: a product of 2 * m * n * k takes so many nanoseconds
BLOCKS = 4
DEVICE_BYTES, CONTEXT_BYTES = 4 << 30, 256 << 20
CURVES = ("saturating", "hump", "step", "waves", "flat")
_TARGETS = (48, 60, 64, 96, 100, 128, 144, 192, 256)
FORWARD = 1 / 3  # of the time of a micro-step


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One device and model, in times."""

    seed: int
    curve: str
    target: int
    sample_seconds: float  # of computing, at a size where the curve is 1
    micro_step_seconds: float  # that every micro-step takes besides
    bend: float  # the size at which the curve begins to rise, or the length of a wave
    rise: float  # by how much
    bf16: float  # the factor on computing
    optimizer_seconds: float
    fused: float  # the factor on the optimizer's step
    sample_bytes: int  # that a block keeps of each sample
    weight_bytes: int

    def shape(self, size: int) -> float:
        """Give what a sample costs at this size, against the least."""
        doublings = max(0.0, math.log2(size / self.bend))
        match self.curve:
            case "hump":
                return 1 + self.rise * doublings**2
            case "step":
                return 1 + self.rise * (size > self.bend)
            case "waves":
                return math.ceil(size / self.bend) * self.bend / size
        return 1.0

    def micro_step(self, size: int, *, bf16: bool) -> float:
        """Give the seconds of one forward and backward pass, without checkpoints."""
        computing = size * self.sample_seconds * self.shape(size) * (self.bf16 if bf16 else 1.0)
        return self.micro_step_seconds + computing

    def update(self, sizes: Sequence[int], knobs: Knobs) -> float:
        """Give the seconds of one whole update: what the tuner has to find the least of."""
        again = {None: 0.0, "half": FORWARD / 2, "all": FORWARD}[knobs.checkpoint]
        passes = sum(self.micro_step(size, bf16=knobs.precision == "bf16") for size in sizes)
        step = self.optimizer_seconds * (self.fused if knobs.optimizer == "fused" else 1.0)
        return passes * (1 + again) + step


def seeded(seed: int) -> Case:
    """Give the case of a seed; the kinds of curves take turns."""
    rng = random.Random(seed)
    target = rng.choice(_TARGETS)
    curve = CURVES[seed % len(CURVES)]
    computing = rng.uniform(0.12, 0.3)  # seconds of an update's computing at its best
    largest = min(1.5 * target, max(4.0, target * 2 ** rng.uniform(-4, 1)))  # about what fits without knobs
    room = DEVICE_BYTES * 0.9 - CONTEXT_BYTES
    weights = rng.randrange(16 << 20, 256 << 20, 1 << 20)
    return Case(
        seed=seed,
        curve=curve,
        target=target,
        sample_seconds=computing / target,
        micro_step_seconds=0.002 if curve == "flat" else rng.uniform(0.004, 0.012),
        bend=rng.choice((4, 8, 16)) if curve == "waves" else max(2.0, largest * 2 ** rng.uniform(-3, 0.5)),
        rise=rng.uniform(0.03, 0.2) if curve == "hump" else rng.uniform(0.08, 0.5),
        bf16=rng.uniform(0.5, 1.4),
        optimizer_seconds=rng.uniform(0.002, 0.03),
        fused=rng.uniform(0.3, 1.1),
        sample_bytes=int((room - 2 * weights) / (BLOCKS * largest)),
        weight_bytes=weights,
    )

"""Counting live tensors on the CPU: exact for what can be told by hand, and never beyond the allowance."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import nn

from autoaccum.device.live import open_live
from autoaccum.device.meter import LiveBytes
from autoaccum.errors import DeviceError
from autoaccum.live.objects import LiveSubject, Objects
from autoaccum.live.planner import LiveLab
from autoaccum.live.state import Snapshot
from autoaccum.records import Outcome, Sample, Trial
from autoaccum.trial import Runner
from autoaccum.units import GIB


@pytest.fixture
def meter() -> LiveBytes:
    return LiveBytes()


def live(meter: LiveBytes) -> int:
    meter.reset()
    return meter.live_bytes


def test_what_is_made_counts_until_it_is_freed(meter: LiveBytes) -> None:
    weight = torch.randn(64, 256)

    with meter:
        inputs = torch.zeros(1000, 64)
        output = inputs @ weight

    assert live(meter) == 1000 * 64 * 4 + 1000 * 256 * 4
    del output
    assert live(meter) == 1000 * 64 * 4
    del inputs
    assert live(meter) == 0


def test_the_peak_outlives_what_made_it(meter: LiveBytes) -> None:
    with meter:
        (torch.zeros(1000) + 1).sum()

    assert meter.peak_bytes == 2 * 4000
    assert live(meter) == 0


def test_what_was_there_before_and_its_views_do_not_count(meter: LiveBytes) -> None:
    data = torch.zeros(1000)

    with meter:
        view = data[:10].view(5, 2)
        data.add_(1)

    assert live(meter) == 0
    assert view.shape == (5, 2)


def test_a_storage_that_grows_counts_with_what_it_grew_by(meter: LiveBytes) -> None:
    before = torch.zeros(10)

    with meter:
        before.resize_(100)

    assert live(meter) == 90 * 4


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
def test_tensors_from_lists_count(meter: LiveBytes, make: Any) -> None:
    with meter:
        made = make([1.0, 2.0])

    assert live(meter) == made.nbytes == 8


def test_an_array_of_numpys_counts_as_a_batch_and_not_as_a_data_set(meter: LiveBytes) -> None:
    data = numpy.zeros(1000, dtype=numpy.uint8)

    with meter:
        rows = torch.from_numpy(data)[:10]
        batch = torch.from_numpy(numpy.zeros(100, dtype=numpy.uint8))
        meter.note([rows, batch])

    assert live(meter) == 100


def test_beyond_the_allowance_is_out_of_memory_and_counts_nothing(meter: LiveBytes) -> None:
    meter.allowed_bytes = 10_000

    with meter, pytest.raises(torch.OutOfMemoryError, match="tried to allocate 8000 bytes where tensors hold 4000"):
        _ = [torch.zeros(1000), torch.zeros(2000)]

    assert meter.peak_bytes == 4000


def test_the_backward_pass_is_counted_and_refused_too(meter: LiveBytes) -> None:
    weight = nn.Parameter(torch.zeros(1000))
    with meter:
        loss = (weight * 2).sum()
    meter.allowed_bytes = live(meter) + 100

    with meter, pytest.raises(torch.OutOfMemoryError):
        loss.backward()  # type: ignore[no-untyped-call]

    assert weight.grad is None


class Product(nn.Module):
    """y = x @ w."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 256))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.weight


def run(trial: Trial, room_bytes: int = GIB) -> tuple[Sample, int]:
    """Run a trial of the product with so much room; give what it showed, and what the process held before."""
    model = Product()
    optimizer = torch.optim.SGD(model.parameters())
    objects = Objects.of(model, lambda model, x: (model(x) ** 2).mean(), lambda n: torch.zeros(n, 64), optimizer)
    device = open_live(objects.device)
    subject = LiveSubject(objects, device, Snapshot(*objects.roots()), lambda: None)
    held = device.describe().overhead_bytes
    return LiveLab(Runner(subject, device, held + room_bytes), device, subject).run(trial), held


def test_a_trial_beyond_the_limit_is_broken_off_before_it_gets_there() -> None:
    sample, held = run(Trial(micro_batch=1024), room_bytes=3 << 20)

    assert sample.outcome is Outcome.OOM
    assert sample.message.startswith("out of memory in the backward pass: OutOfMemoryError: tried to allocate 1048576 ")
    assert sample.device_used_bytes is not None
    assert held + (2 << 20) < sample.device_used_bytes <= held + (3 << 20)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_peak_of_a_trial_is_exact_to_the_byte(steps: int) -> None:
    sample, held = run(Trial(micro_batch=1024, accumulation_steps=steps))

    x, y, gradient = (4 * size for size in (1024 * 64, 1024 * 256, 64 * 256))
    scalars = 3 * 4  # the loss, its share of the update, and the gradient of that
    # The derivative of y ** 2 takes four tensors besides y; the gradient stays from the first micro-step on.
    assert sample.peak_allocated_bytes == x + 5 * y + scalars + (gradient if steps > 1 else 0)
    assert sample.device_used_bytes == held + sample.peak_allocated_bytes


def test_other_devices_are_refused() -> None:
    with pytest.raises(DeviceError, match="the model is on meta, which cannot be probed"):
        open_live(torch.device("meta"))

"""Running out of memory within a window leaves no trace: the result equals the run without it."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import autoaccum
from autoaccum.errors import AutoaccumWarning, NothingFits
from autoaccum.training.stepper import Stepper
from tests.training import (
    FEATURES,
    ROWS,
    TokenModel,
    classifier,
    distance,
    mean_loss,
    plan_of,
    ragged,
    samples,
    token_loss,
)


class Failing(torch.autograd.Function):
    """The identity, whose backward pass runs out of memory when told to."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, fails: bool) -> torch.Tensor:
        ctx.fails = fails
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.fails:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return gradients[0], None


class Fault:
    """A loss that runs out of memory once, at the given call, in the forward or in the backward pass."""

    def __init__(self, call: int, where: str) -> None:
        self.call, self.where, self.calls = call, where, 0

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        fails = self.calls == self.call
        self.calls += 1
        if self.where == "backward":
            # In the middle of the network: the layers behind it have their gradients already.
            hidden = Failing.apply(model[0](batch[0]), fails)  # type: ignore[index,no-untyped-call]
            return nn.functional.cross_entropy(model[1:](hidden), batch[1])  # type: ignore[index]
        loss = mean_loss(model, batch)
        if fails:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")
        return loss


def noisy() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 5)
    ).double()


def train(step: Stepper, updates: int = 3) -> list[float]:
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)
    return [step(samples(ROWS, seed)).loss for seed in range(updates)]


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("call", range(12))
def test_a_replayed_window_equals_the_same_split_without_a_fault(call: int, where: str) -> None:
    # Four micro-batches of 6 in each of three windows. After the fault: at most 4, so six of 4.
    model = noisy()
    reference, window = copy.deepcopy(model), call // 4

    step = plan_of(6, 6, 6, 6).stepper(model, torch.optim.Adam(model.parameters()), Fault(call, where))
    with pytest.warns(AutoaccumWarning, match="micro-batch 6 ran out of memory .* at most 4"):
        losses = train(step)

    optimizer = torch.optim.Adam(reference.parameters())
    before = plan_of(6, 6, 6, 6).stepper(reference, optimizer, Fault(-1, where))
    after = plan_of(*[4] * 6).stepper(reference, optimizer, Fault(-1, where))
    torch.manual_seed(7)
    expected = [(before if seed < window else after)(samples(ROWS, seed)).loss for seed in range(3)]
    assert losses == expected
    assert distance(model, reference) == 0
    for mine, other in zip(model.buffers(), reference.buffers(), strict=True):
        assert torch.equal(mine, other)
    assert step.micro_batch == 4


@pytest.mark.parametrize("call", range(3))
def test_without_noise_the_result_is_that_of_the_full_batch(call: int) -> None:
    torch.manual_seed(1)
    model = classifier()
    reference = copy.deepcopy(model)

    with pytest.warns(AutoaccumWarning):
        train(plan_of(8, 8, 8).stepper(model, torch.optim.Adam(model.parameters()), Fault(call, "backward")))
    train(plan_of(24).stepper(reference, torch.optim.Adam(reference.parameters()), mean_loss))

    assert distance(model, reference) < 1e-12


def test_generators_of_python_and_numpy_are_set_back_too() -> None:
    seen: list[tuple[float, float]] = []
    fault = Fault(2, "forward")

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append((random.random(), float(numpy.random.rand())))
        return fault(model, batch)

    model = classifier()
    with pytest.warns(AutoaccumWarning):
        train(plan_of(8, 8, 8).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss), updates=1)

    assert seen[3:6] == seen[:3]


def test_it_goes_on_shrinking_until_the_batch_fits() -> None:
    model = classifier()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch[0]) > 3:
            raise torch.OutOfMemoryError("out of memory")
        return mean_loss(model, batch)

    step = plan_of(24).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    with pytest.warns(AutoaccumWarning):
        first = step(samples(ROWS))
    second = step(samples(ROWS))  # remembers, so nothing is warned of

    assert max(first.micro_batches) <= 3
    assert second.micro_batches == first.micro_batches


def test_micro_batches_of_ones_own_are_split_only_once_one_did_not_fit() -> None:
    model = TokenModel().double()
    reference = copy.deepcopy(model)

    def loss(model: nn.Module, batch: Any) -> Any:
        if len(batch["ids"]) > 10:
            raise torch.OutOfMemoryError("out of memory")
        return token_loss(model, batch)

    parts = [ragged(12, 1), ragged(5, 2)]
    with pytest.warns(AutoaccumWarning, match="micro-batch 12"):
        out = plan_of(12, 5).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)(parts)
    plan_of(12, 5).stepper(reference, torch.optim.SGD(reference.parameters(), 0.1), token_loss)(parts)

    assert out.micro_batches == (6, 6, 5)
    assert distance(model, reference) < 1e-12


def test_the_size_never_grows_again() -> None:
    model = classifier()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch[0]) == 12:
            raise torch.OutOfMemoryError("out of memory")
        return mean_loss(model, batch)

    step = plan_of(4, 4, 4, 4, 4, 4).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    with pytest.warns(AutoaccumWarning, match="at most 4"):
        step(micro_batches=[samples(12), samples(12)])

    assert step(samples(ROWS)).micro_batches == (4,) * 6


def test_a_ctrl_c_in_the_middle_of_a_window_leaves_no_gradients() -> None:
    model = classifier()
    calls = iter([False, True])

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if next(calls):
            raise KeyboardInterrupt
        return mean_loss(model, batch)

    with pytest.raises(KeyboardInterrupt):
        plan_of(12, 12).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)(samples(ROWS))

    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_sample_that_does_not_fit_is_said() -> None:
    model = classifier()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.00 GiB.")

    step = plan_of(2, 2).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)

    with pytest.warns(AutoaccumWarning), pytest.raises(NothingFits, match=r"not even one sample fits.*7\.00 GiB"):
        step(samples(4))


def test_an_optimizer_that_does_not_fit_is_said() -> None:
    class Large(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            raise torch.OutOfMemoryError("out of memory")

    model = classifier()

    with pytest.raises(NothingFits, match="in the optimizer's step"):
        plan_of(12, 12).stepper(model, Large(model.parameters(), 0.1), mean_loss)(samples(ROWS))


def test_another_error_is_the_callers_and_leaves_no_gradients() -> None:
    model = classifier()
    calls = iter([False, True])

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if next(calls):
            raise ZeroDivisionError("mine")
        return mean_loss(model, batch)

    with pytest.raises(ZeroDivisionError, match="mine"):
        plan_of(12, 12).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)(samples(ROWS))

    assert all(parameter.grad is None for parameter in model.parameters())


class Counting(nn.Module):
    """Buffers of all kinds: changed in place, replaced, made late, and a large one that never changes."""

    seen: torch.Tensor
    average: torch.Tensor
    mask: torch.Tensor
    late: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 5).double()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(FEATURES, dtype=torch.float64), persistent=False)
        self.register_buffer("late", None)
        self.register_buffer("mask", torch.ones(100, 100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        self.late = x.detach().sum() if self.late is None else self.late + x.detach().sum()
        return torch.as_tensor(self.linear(x))


def test_buffers_of_every_kind_are_set_back() -> None:
    torch.manual_seed(1)
    model = Counting()
    reference = copy.deepcopy(model)
    fault = Fault(1, "forward")

    with pytest.warns(AutoaccumWarning):
        train(plan_of(12, 12).stepper(model, torch.optim.SGD(model.parameters(), 0.1), fault))
    train(plan_of(8, 8, 8).stepper(reference, torch.optim.SGD(reference.parameters(), 0.1), mean_loss))

    assert int(model.seen) == 3 * ROWS
    assert torch.equal(model.average, reference.average)
    assert model.late is not None
    assert reference.late is not None
    assert torch.equal(model.late, reference.late)


def test_statistics_that_were_frozen_at_first_are_set_back_once_they_are_not() -> None:
    model = noisy()
    reference = copy.deepcopy(model)
    step = plan_of(12, 12).stepper(model, torch.optim.SGD(model.parameters(), 0.0), Fault(3, "forward"))
    unharmed = plan_of(8, 8, 8).stepper(reference, torch.optim.SGD(reference.parameters(), 0.0), mean_loss)
    model[1].eval()
    step(samples(ROWS))
    model[1].train()

    with pytest.warns(AutoaccumWarning):
        step(samples(ROWS))
    unharmed(samples(ROWS))

    for mine, other in zip(model.buffers(), reference.buffers(), strict=True):
        assert torch.equal(mine, other)


def test_a_buffer_that_changes_for_the_first_time_cannot_be_set_back_and_is_named() -> None:
    class Sleeper(Counting):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if awake:
                self.mask[0, 0] += 1
            return torch.as_tensor(self.linear(x))

    model, awake = Sleeper(), False
    step = plan_of(12, 12).stepper(model, torch.optim.SGD(model.parameters(), 0.1), Fault(3, "forward"))
    step(samples(ROWS))
    awake = True

    with pytest.raises(autoaccum.AutoaccumError, match="buffer mask changed for the first time"):
        step(samples(ROWS))

"""What cannot be accumulated for is refused before the first update, in one line that says what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import autoaccum
from autoaccum.errors import UsageError, WorkloadError
from autoaccum.plans import Plan
from tests.training import ROWS, classifier, mean_loss, plan_of, samples


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def refuse(words: str, model: Any = None, optimizer: Any = None, loss: Any = mean_loss, **options: Any) -> None:
    model = classifier() if model is None else model
    with pytest.raises(UsageError, match=words):
        plan_of(12, 12).stepper(model, sgd(model) if optimizer is None else optimizer, loss, **options)


def test_an_optimizer_with_a_closure() -> None:
    model = classifier()

    refuse("LBFGS evaluates the loss again and again", model, torch.optim.LBFGS(model.parameters()))


def test_an_optimizer_of_ones_own_with_a_closure() -> None:
    class Sam(torch.optim.SGD):
        def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
            return closure()

    model = classifier()

    refuse("Sam evaluates the loss", model, Sam(model.parameters(), 0.1))


def test_an_optimizer_in_a_hook_after_backward() -> None:
    model = classifier()
    optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda p, o=optimizer: o.step())  # type: ignore[no-untyped-call]

    refuse("0.weight has a hook from register_post_accumulate_grad_hook", model)


def test_an_optimizer_within_backward() -> None:
    model = classifier()
    with warnings.catch_warnings(action="ignore"):  # the import itself warns of torch.jit
        from torch.distributed.optim import _apply_optimizer_in_backward  # type: ignore[attr-defined]
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})

    refuse("0.weight is stepped by an optimizer within backward", model)


def test_gradients_in_main_grad() -> None:
    model = classifier()
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter)  # type: ignore[attr-defined]

    refuse("0.weight has a main_grad", model)


def test_a_parameter_in_two_optimizers() -> None:
    model = classifier()

    refuse("0.weight is in two optimizers", model, [sgd(model), sgd(model)])


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("no optimizer", {"optimizer": []}),
        ("int is no optimizer", {"optimizer": 3}),
        ("holds none of the model's parameters", {"optimizer": sgd(classifier())}),
        ("clip must be a norm above 0", {"clip": 0}),
        ("clip must be a norm above 0", {"clip": float("nan")}),
        ("not '1'", {"clip": "1"}),
        ("scaler is a bool", {"scaler": True}),
        ("loss is a Tensor", {"loss": torch.zeros(1)}),
        ("model is a SimpleNamespace", {"model": SimpleNamespace(), "optimizer": sgd(classifier())}),
    ],
)
def test_wrong_arguments(words: str, change: dict[str, Any]) -> None:
    refuse(words, **change)


def test_a_plan_for_several_ranks_needs_a_wrapped_model() -> None:
    model = classifier()

    with pytest.raises(UsageError, match="for 2 ranks and the model is not wrapped in DistributedDataParallel"):
        plan_of(12, world_size=2).stepper(model, sgd(model), mean_loss)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda loss: loss.detach(), "without grad"),
        (lambda loss: loss.item(), "returned float"),
        (lambda loss: loss.expand(3), r"shape \(3,\)"),
        (lambda loss: (loss, "8"), "with '8' as count"),
        (lambda loss: (loss, -1), "with -1 as count"),
        (lambda loss: (loss, True), "with True as count"),
        (lambda loss: (loss, loss * 2), "two values with gradients"),
        (lambda loss: (loss, torch.tensor(-5.0)), "counts that add up to -10"),
        (lambda loss: (loss, torch.tensor(float("nan"))), "counts that add up to nan"),
        (lambda loss: (loss, torch.zeros(12, 5)), r"with a count of shape \(12, 5\): give one number"),
        (lambda loss: (loss, float("nan")), "with nan as count"),
        (lambda loss: {"loss": loss}, "returned dict"),
    ],
)
def test_a_loss_that_breaks_the_contract(returned: Callable[[torch.Tensor], Any], words: str) -> None:
    model = classifier()
    step = plan_of(12, 12).stepper(model, sgd(model), lambda model, batch: returned(mean_loss(model, batch)))

    with pytest.raises(WorkloadError, match=words):
        step(samples(ROWS))


def test_a_batch_larger_than_the_plans() -> None:
    model = classifier()

    with pytest.raises(UsageError, match=r"has 25 rows and the plan takes 24 for each rank: .*plan\.rank_batch"):
        plan_of(12, 12).stepper(model, sgd(model), mean_loss)(samples(25))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((torch.zeros(4, 6), torch.zeros(5)), r"batch\[0\] has 4 rows and batch\[1\] has 5"),
        ("text", "a batch of type str has no rows"),
        (torch.tensor(3.0), "has no rows"),
    ],
)
def test_a_batch_that_cannot_be_split(batch: Any, words: str) -> None:
    model = classifier()

    with pytest.raises(UsageError, match=words):
        plan_of(12, 12).stepper(model, sgd(model), mean_loss)(batch)


def test_neither_a_batch_nor_micro_batches() -> None:
    model = classifier()
    step = plan_of(12, 12).stepper(model, sgd(model), mean_loss)

    with pytest.raises(UsageError, match="give the step one batch"):
        step()


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"target_batch": 0, "micro_batch": 1}, "target_batch must be a whole number"),
        ({"target_batch": 8, "micro_batch": 2.5}, "micro_batch must be a whole number"),
        ({"target_batch": 9, "micro_batch": 2, "world_size": 2}, "take 8 or 10"),
    ],
)
def test_a_plan_of_impossible_numbers(numbers: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Plan.of(**numbers)


def test_windows_are_for_one_process() -> None:
    with pytest.raises(autoaccum.UsageError, match=r"with several ranks use plan\.stepper"):
        plan_of(12, world_size=2).windows([])

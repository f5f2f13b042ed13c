"""The step equals training on the full batch: weights after five updates, for every optimizer and every split."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import autoaccum
from autoaccum.plans import Plan
from tests.training import (
    ROWS,
    TokenModel,
    classifier,
    distance,
    full_batch,
    mean_loss,
    plan_of,
    ragged,
    samples,
    token_loss,
    weighted_loss,
)

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}
PLANS = [
    (24,), (12, 12), (23, 1), (8, 8, 8), (10, 7, 7), (6,) * 4, (5, 5, 5, 5, 4), (4,) * 6, (4, 4, 4, 3, 3, 3, 3),
    (3,) * 8, (3, 3, 3, 3, 3, 3, 3, 2, 1), (3, 3, 3, 3, 2, 2, 2, 2, 2, 2), (3, 3) + (2,) * 9, (2,) * 12,
    (2,) * 11 + (1, 1),
]  # fmt: skip
PROBLEMS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any], Any]] = {
    "mean": (classifier, samples, mean_loss),
    "ragged tokens": (lambda: TokenModel().double(), ragged, token_loss),
    "class weights": (classifier, samples, weighted_loss),
}


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "+".join(map(str, plan)))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_five_updates_equal_those_of_the_full_batch(problem: str, optimizer: str, plan: tuple[int, ...]) -> None:
    build, make_batch, loss = PROBLEMS[problem]
    torch.manual_seed(1)
    model = build()
    reference = copy.deepcopy(model)
    batches = [make_batch(ROWS, seed) for seed in range(5)]

    step = plan_of(*plan).stepper(model, OPTIMIZERS[optimizer](model.parameters()), loss)
    for batch in batches:
        step(batch)
    full_batch(reference, OPTIMIZERS[optimizer](reference.parameters()), loss, batches)

    assert distance(model, reference) < 1e-12


@pytest.mark.parametrize("last", [1, 3, 9, 17, 23])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_shorter_last_batch_is_exact(problem: str, last: int) -> None:
    build, make_batch, loss = PROBLEMS[problem]
    torch.manual_seed(1)
    model = build()
    reference = copy.deepcopy(model)
    batches = [make_batch(ROWS, 0), make_batch(last, 1)]

    step = plan_of(10, 7, 7).stepper(model, OPTIMIZERS["adam"](model.parameters()), loss)
    results = [step(batch) for batch in batches]
    full_batch(reference, OPTIMIZERS["adam"](reference.parameters()), loss, batches)

    assert distance(model, reference) < 1e-12
    assert sum(results[1].micro_batches) == last
    assert max(results[1].micro_batches) - min(results[1].micro_batches) <= 1


@pytest.mark.parametrize("empty", [range(0, 8), range(8, 16), range(16, 24), range(0, 16)])
def test_micro_batches_whose_every_token_is_masked_add_nothing(empty: range) -> None:
    torch.manual_seed(1)
    model = TokenModel().double()
    reference = copy.deepcopy(model)
    batches = [ragged(ROWS, seed, empty) for seed in range(5)]

    step = plan_of(8, 8, 8).stepper(model, OPTIMIZERS["adamw"](model.parameters()), token_loss)
    for batch in batches:
        step(batch)
    full_batch(reference, OPTIMIZERS["adamw"](reference.parameters()), token_loss, batches)

    assert distance(model, reference) < 1e-12


def test_a_window_in_which_nothing_counts_changes_nothing() -> None:
    model = TokenModel().double()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    before = copy.deepcopy(model)

    out = plan_of(8, 8, 8).stepper(model, optimizer, token_loss)(ragged(ROWS, empty=range(ROWS)))

    assert out.skipped
    assert out.count == 0
    assert math.isnan(out.loss)
    assert distance(model, before) == 0
    assert not optimizer.state


def test_clipping_happens_once_on_the_whole_gradient() -> None:
    torch.manual_seed(1)
    model = classifier()
    reference = copy.deepcopy(model)
    batches = [samples(ROWS, seed) for seed in range(5)]

    step = plan_of(10, 7, 7).stepper(model, OPTIMIZERS["sgd"](model.parameters()), mean_loss, clip=0.05)
    norms = [step(batch).grad_norm for batch in batches]
    full_batch(reference, OPTIMIZERS["sgd"](reference.parameters()), mean_loss, batches, clip=0.05)

    assert distance(model, reference) < 1e-12
    assert all(norm is not None and norm > 0.05 for norm in norms)  # before clipping


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_gradient_scaler_changes_nothing(problem: str, clip: float | None) -> None:
    build, make_batch, loss = PROBLEMS[problem]
    torch.manual_seed(1)
    model = build().float()
    reference = copy.deepcopy(model)
    batches = [make_batch(ROWS, seed) for seed in range(5)]
    if problem != "ragged tokens":
        batches = [(inputs.float(), labels) for inputs, labels in batches]

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    step = plan_of(10, 7, 7).stepper(model, OPTIMIZERS["adamw"](model.parameters()), loss, clip=clip, scaler=scaler)
    results = [step(batch) for batch in batches]
    full_batch(reference, OPTIMIZERS["adamw"](reference.parameters()), loss, batches, clip=clip)

    assert distance(model, reference) < 1e-6
    assert not any(out.skipped for out in results)


def test_an_overflow_skips_the_step_and_says_so() -> None:
    model = classifier().float()
    before = copy.deepcopy(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)

    def large(model: nn.Module, batch: Any) -> torch.Tensor:
        return mean_loss(model, batch) * 1e10

    inputs, labels = samples(ROWS)
    step = plan_of(12, 12).stepper(model, torch.optim.SGD(model.parameters(), 0.1), large, scaler=scaler)
    out = step((inputs.float(), labels))

    assert out.skipped
    assert distance(model, before) == 0
    assert scaler.get_scale() == 2.0**119


@pytest.mark.parametrize("clip", [None, 1.0])
def test_an_overflow_in_one_optimizer_skips_them_all(clip: float | None) -> None:
    model = classifier().float()
    before = copy.deepcopy(model)
    first, rest = list(model.parameters())[:2], list(model.parameters())[2:]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return mean_loss(model, batch) + (first[0].sum() * 1e38) * 10

    inputs, labels = samples(ROWS)
    step = plan_of(12, 12).stepper(
        model, [torch.optim.AdamW(first), torch.optim.AdamW(rest)], loss, clip=clip, scaler=scaler
    )
    out = step((inputs.float(), labels))

    assert out.skipped
    assert distance(model, before) == 0
    assert scaler.get_scale() == 2.0


def test_an_optimizer_without_gradients_does_not_disturb_the_scaler() -> None:
    model = classifier().float()
    idle = nn.Linear(2, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    inputs, labels = samples(ROWS)

    step = plan_of(12, 12).stepper(
        model, [torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(idle.parameters(), 0.1)], mean_loss,
        scaler=scaler,
    )  # fmt: skip

    assert not step((inputs.float(), labels)).skipped


def test_a_parameter_added_later_is_zeroed_and_trained_like_the_others() -> None:
    torch.manual_seed(1)
    model = classifier()
    reference = copy.deepcopy(model)
    extra = nn.Parameter(torch.ones(5, dtype=torch.float64))
    twin = nn.Parameter(torch.ones(5, dtype=torch.float64))

    def with_bias(bias: nn.Parameter) -> Callable[..., torch.Tensor]:
        return lambda model, batch: functional.cross_entropy(model(batch[0]) + bias, batch[1])

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = plan_of(10, 7, 7).stepper(model, optimizer, with_bias(extra))
    optimizer.add_param_group({"params": [extra]})
    for seed in range(4):
        step(samples(ROWS, seed))
    both = torch.optim.SGD([*reference.parameters(), twin], 0.1)
    full_batch(reference, both, with_bias(twin), [samples(ROWS, seed) for seed in range(4)])

    assert torch.allclose(extra, twin, rtol=1e-12, atol=0)
    assert distance(model, reference) < 1e-12


def test_the_loss_is_the_mean_of_the_whole_window() -> None:
    model = TokenModel().double()
    batch = ragged(ROWS)
    with torch.no_grad():
        total, count = token_loss(model, batch)

    out = plan_of(10, 7, 7).stepper(model, torch.optim.SGD(model.parameters(), 0.1), token_loss)(batch)

    assert out.loss == pytest.approx(float(total / count), rel=1e-12)
    assert out.count == int(count)
    assert out.micro_batches == (10, 7, 7)
    assert out.grad_norm is None
    assert repr(out).endswith("skipped=False, 1 x 10 + 2 x 7)")


def test_stale_gradients_are_dropped_and_none_are_left() -> None:
    torch.manual_seed(1)
    model = classifier()
    reference = copy.deepcopy(model)
    step = plan_of(12, 12).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)
    torch.autograd.backward(mean_loss(model, samples(ROWS, 9)))

    step(samples(ROWS))
    full_batch(reference, torch.optim.SGD(reference.parameters(), 0.1), mean_loss, [samples(ROWS)])

    assert distance(model, reference) < 1e-12
    assert all(parameter.grad is None for parameter in model.parameters())


def test_parameters_outside_the_optimizer_keep_no_gradient() -> None:
    model = classifier()
    frozen, trained = list(model.parameters())[:2], list(model.parameters())[2:]

    plan_of(12, 12).stepper(model, torch.optim.SGD(trained, 0.1), mean_loss, clip=1.0)(samples(ROWS))

    assert all(parameter.grad is None for parameter in frozen)


def test_several_optimizers_step_once_each() -> None:
    torch.manual_seed(1)
    model = classifier()
    reference = copy.deepcopy(model)
    first, rest = list(model.parameters())[:2], list(model.parameters())[2:]
    batches = [samples(ROWS, seed) for seed in range(5)]

    step = plan_of(10, 7, 7).stepper(
        model, [torch.optim.SGD(first, 0.1), torch.optim.SGD(rest, 0.1)], mean_loss, clip=0.5
    )
    for batch in batches:
        step(batch)
    full_batch(reference, torch.optim.SGD(reference.parameters(), 0.1), mean_loss, batches, clip=0.5)

    assert distance(model, reference) < 1e-12


def test_dropout_of_the_plan_with_one_micro_batch_is_that_of_a_plain_loop() -> None:
    torch.manual_seed(1)
    model = classifier(nn.Dropout(0.5))
    reference = copy.deepcopy(model)
    batches = [samples(ROWS, seed) for seed in range(5)]

    torch.manual_seed(2)
    step = plan_of(ROWS).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)
    for batch in batches:
        step(batch)
    torch.manual_seed(2)
    full_batch(reference, torch.optim.SGD(reference.parameters(), 0.1), mean_loss, batches)

    assert distance(model, reference) == 0


@pytest.mark.parametrize(
    "given",
    [
        lambda parts: {"batch": parts},
        lambda parts: {"micro_batches": parts},
        lambda parts: {"batch": [list(part) for part in parts]},  # as a DataLoader gives them
        lambda parts: {"micro_batches": iter(parts)},
    ],
)
def test_micro_batches_of_ones_own_are_taken_as_they_are(given: Callable[[Any], dict[str, Any]]) -> None:
    torch.manual_seed(1)
    model = classifier()
    reference = copy.deepcopy(model)
    inputs, labels = samples(ROWS)
    parts = list(zip(torch.split(inputs, [11, 9, 4]), torch.split(labels, [11, 9, 4]), strict=True))

    out = Plan.of(target_batch=ROWS, micro_batch=8).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)(
        **given(parts)
    )
    full_batch(reference, torch.optim.SGD(reference.parameters(), 0.1), mean_loss, [(inputs, labels)])

    assert distance(model, reference) < 1e-12
    assert out.micro_batches == (11, 9, 4)


def views(rows: int) -> list[dict[str, torch.Tensor]]:
    """A batch as a loader collates pairs of dicts: a list that looks like micro-batches."""
    inputs, labels = samples(rows)
    return [{"x": inputs, "y": labels}, {"x": inputs + 1, "y": labels}]


def of_views(model: nn.Module, batch: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    first, second = batch
    return functional.cross_entropy(model(first["x"]) + model(second["x"]), first["y"])


def test_a_batch_that_a_loader_collated_into_a_list_of_containers_is_one_batch() -> None:
    torch.manual_seed(1)
    model = classifier()
    reference = copy.deepcopy(model)

    step = plan_of(10, 7, 7).stepper(model, torch.optim.SGD(model.parameters(), 0.1), of_views)
    outs = [step(views(ROWS)), step(views(5))]  # the second by what the first has told
    full_batch(reference, torch.optim.SGD(reference.parameters(), 0.1), of_views, [views(ROWS), views(5)])

    assert [out.micro_batches for out in outs] == [(10, 7, 7), (5,)]
    assert distance(model, reference) < 1e-12


def test_a_list_that_may_be_either_is_asked_about() -> None:
    model = classifier()
    step = plan_of(10, 7, 7).stepper(model, torch.optim.SGD(model.parameters(), 0.1), of_views)

    with pytest.raises(autoaccum.UsageError, match=r"a list of 2 may be one batch or micro-batches: write step\(tuple"):
        step(views(5))


def test_a_shorter_last_list_of_micro_batches_is_taken_as_the_first_was() -> None:
    model = classifier()
    step = plan_of(10, 7, 7).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)

    step([samples(12), samples(12)])

    assert step([samples(4), samples(3)]).micro_batches == (4, 3)


def test_arrays_of_numpy_are_split_and_counted() -> None:
    model = classifier()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return mean_loss(model, (torch.as_tensor(batch[0]), torch.as_tensor(batch[1])))

    inputs, labels = samples(ROWS)
    out = plan_of(10, 7, 7).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)(
        (inputs.numpy(), labels.numpy())
    )

    assert out.micro_batches == (10, 7, 7)


@pytest.mark.parametrize("batch", [samples(0), {"micro_batches": [samples(0), samples(0)]}])
def test_nothing_to_learn_from_changes_nothing(batch: Any) -> None:
    model = classifier()
    before = copy.deepcopy(model)
    step = plan_of(12, 12).stepper(model, torch.optim.AdamW(model.parameters()), mean_loss)

    out = step(**batch) if isinstance(batch, dict) else step(batch)

    assert out.skipped
    assert distance(model, before) == 0


def test_a_list_of_tensors_is_one_batch_as_a_loader_gives_it() -> None:
    model = classifier()

    out = plan_of(12, 12).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)(list(samples(ROWS)))

    assert out.micro_batches == (12, 12)


def test_bf16_losses_are_summed_in_fp32() -> None:
    model = classifier().bfloat16()
    batch = (samples(ROWS)[0].bfloat16() * 0, samples(ROWS)[1])

    def loss(model: nn.Module, batch: Any) -> Any:
        return mean_loss(model, batch) * 0 + 1.0  # 1 + 1 + ... in bf16 stops at 256

    plan = Plan.of(target_batch=ROWS, micro_batch=1)
    out = plan.stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)(batch)

    assert out.loss == pytest.approx(1.0, rel=1e-6)


def test_sparse_gradients_are_divided_too() -> None:
    torch.manual_seed(1)
    model = nn.Embedding(11, 4, sparse=True).double()
    reference = copy.deepcopy(model)
    ids = torch.arange(12) % 11

    def loss(model: nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, int]:
        return model(ids).square().sum(), 3 * len(ids)

    step = Plan.of(target_batch=12, micro_batch=5).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)
    step(ids)
    step(ids[:7])
    full_batch(reference, torch.optim.SGD(reference.parameters(), 0.1), loss, [ids, ids[:7]])

    assert distance(model, reference) < 1e-12


def test_the_noise_scale_is_known_as_a_power_of_ten() -> None:
    # Targets with variance 1 around a weight that is 1 away: S = 4, |G|^2 = 4 * w^2.
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)  # stays where it is
    nn.init.constant_(model.weight, 0.1)

    def loss(model: nn.Module, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(model(torch.ones_like(targets)), targets)

    step = Plan.of(target_batch=256, micro_batch=16).stepper(model, optimizer, loss, noise_scale=True)
    assert step.noise_scale is None
    for _ in range(200):
        step(torch.randn(256, 1, dtype=torch.float64))

    assert step.noise_scale == 100.0  # 4 / (4 * 0.1^2)


@pytest.mark.parametrize("scale", [None, 1024.0])
def test_the_noise_scale_looks_at_what_is_trained_only_and_through_the_scaler(scale: float | None) -> None:
    torch.manual_seed(0)
    trained, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.constant_(trained.weight, 0.1)
    nn.init.constant_(other.weight, 0.0)
    model = nn.ModuleDict({"trained": trained, "other": other}).double()
    optimizer = torch.optim.SGD(model["trained"].parameters(), 0.0)

    def loss(model: Any, targets: torch.Tensor) -> torch.Tensor:
        ones = torch.ones_like(targets)
        return functional.mse_loss(model["trained"](ones) + model["other"](ones * 50), targets)

    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
    plan = Plan.of(target_batch=256, micro_batch=16)
    step = plan.stepper(model, optimizer, loss, noise_scale=True, scaler=scaler)
    for _ in range(200):
        step(torch.randn(256, 1, dtype=torch.float64))

    assert step.noise_scale == 100.0


def test_the_hooks_of_the_noise_scale_go_with_the_stepper() -> None:
    model = classifier()
    step = plan_of(12, 12).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss, noise_scale=True)
    parameter = next(model.parameters())
    assert parameter._backward_hooks

    del step
    gc.collect()

    assert not parameter._backward_hooks


def test_weights_are_updated_once_for_each_call() -> None:
    model = classifier()
    optimizer = torch.optim.Adam(model.parameters())

    step = plan_of(6, 6, 6, 6).stepper(model, optimizer, mean_loss)
    for _ in range(3):
        step(samples(ROWS))

    assert {int(state["step"]) for state in optimizer.state.values()} == {3}


def test_the_plan_of_known_numbers_gives_the_rest_to_the_last() -> None:
    plan = autoaccum.Plan.of(target_batch=200, micro_batch=32, world_size=2)

    assert plan.micro_batches == (32, 32, 32, 4)
    assert (plan.rank_batch, plan.effective_batch, plan.accumulation_steps) == (100, 200, 4)

"""Windows: loops of one's own, with updates as exact as the stepper's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from autoaccum.errors import UsageError
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
)


def test_a_window_of_one_optimizer_is_the_full_batch() -> None:
    torch.manual_seed(1)
    model = TokenModel().double()
    reference = copy.deepcopy(model)
    batches = [ragged(ROWS, 0), ragged(ROWS, 1), ragged(13, 2)]
    optimizer = torch.optim.Adam(model.parameters())

    for window in plan_of(10, 7, 7).windows(batches):
        with window.update(optimizer, clip=0.1) as update:
            for batch in window:
                update.backward(token_loss(model, batch))
    full_batch(reference, torch.optim.Adam(reference.parameters()), token_loss, batches, clip=0.1)

    assert distance(model, reference) < 1e-12


def test_two_players_on_the_same_window_are_exact() -> None:
    torch.manual_seed(1)
    generator, critic = nn.Linear(3, 6).double(), nn.Linear(6, 1).double()
    full_generator, full_critic = copy.deepcopy(generator), copy.deepcopy(critic)
    noise, real = torch.randn(ROWS, 3).double(), samples(ROWS)[0]

    def judged(judge: nn.Module, images: torch.Tensor, verdict: float) -> torch.Tensor:
        wanted = torch.full((len(images), 1), verdict).double()
        return functional.binary_cross_entropy_with_logits(judge(images), wanted)

    def play(make: nn.Module, judge: nn.Module, sizes: tuple[int, ...]) -> list[float]:
        make_step, judge_step = torch.optim.SGD(make.parameters(), 0.1), torch.optim.SGD(judge.parameters(), 0.1)
        losses = []
        for window in plan_of(*sizes).windows([(noise, real)] * 3):
            with window.update(judge_step) as update:
                for z, x in window:
                    update.backward(judged(judge, x, 1.0) + judged(judge, make(z).detach(), 0.0))
            assert update.result is not None
            losses.append(update.result.loss)
            with window.update(make_step) as update:
                for z, _ in window:
                    update.backward(judged(judge, make(z), 1.0))
        return losses

    assert play(generator, critic, (10, 7, 7)) == pytest.approx(play(full_generator, full_critic, (ROWS,)), rel=1e-12)
    assert distance(generator, full_generator) < 1e-12
    assert distance(critic, full_critic) < 1e-12


def test_a_window_knows_its_rows() -> None:
    (whole, short) = plan_of(10, 7, 7).windows([samples(ROWS), samples(5)])

    assert (len(whole), whole.micro_batches, whole.rows) == (3, (10, 7, 7), ROWS)
    assert (len(short), short.micro_batches, short.rows) == (1, (5,), 5)
    assert [len(inputs) for inputs, _ in whole] == [10, 7, 7]
    assert [len(inputs) for inputs, _ in whole] == [10, 7, 7]  # as often as one likes


def test_a_skipped_micro_batch_does_not_count() -> None:
    torch.manual_seed(1)
    model = classifier()
    reference = copy.deepcopy(model)
    inputs, labels = samples(ROWS)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    (window,) = plan_of(10, 7, 7).windows([(inputs, labels)])
    with window.update(optimizer) as update:
        for index, batch in enumerate(window):
            if index != 1:
                update.backward(mean_loss(model, batch))
    keep = torch.tensor([row for row in range(ROWS) if not 10 <= row < 17])
    full_batch(reference, torch.optim.SGD(reference.parameters(), 0.1), mean_loss, [(inputs[keep], labels[keep])])

    assert distance(model, reference) < 1e-12


def test_an_error_in_the_block_makes_no_step() -> None:
    model = classifier()
    before = copy.deepcopy(model)
    (window,) = plan_of(12, 12).windows([samples(ROWS)])

    update = window.update(torch.optim.SGD(model.parameters(), 0.1))

    def break_off() -> None:
        with update:
            update.backward(mean_loss(model, next(iter(window))))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()

    assert distance(model, before) == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert update.result is None


def test_micro_batches_go_to_the_device() -> None:
    (window,) = plan_of(12, 12).windows([samples(ROWS)], device="meta")

    assert {inputs.device.type for inputs, _ in window} == {"meta"}


def test_a_batch_larger_than_the_plans_is_refused() -> None:
    with pytest.raises(UsageError, match="plan takes 24"):
        list(plan_of(12, 12).windows([samples(30)]))


def test_a_block_that_was_given_no_loss_says_so() -> None:
    model = classifier()
    (window,) = plan_of(12, 12).windows([samples(ROWS)])

    def by_habit() -> None:
        with window.update(torch.optim.SGD(model.parameters(), 0.1)):
            for batch in window:
                torch.autograd.backward(mean_loss(model, batch))

    with pytest.raises(UsageError, match=r"no loss was given to update\.backward"):
        by_habit()


def test_a_loss_given_outside_of_the_loop_is_refused() -> None:
    model = classifier()
    (window,) = plan_of(12, 12).windows([samples(ROWS)])

    def outside() -> None:
        with window.update(torch.optim.SGD(model.parameters(), 0.1)) as update:
            update.backward(mean_loss(model, samples(ROWS)))

    with pytest.raises(UsageError, match="for the loop over the window"):
        outside()


def test_a_scaler_changes_nothing_in_a_window() -> None:
    torch.manual_seed(1)
    model = classifier()
    reference = copy.deepcopy(model)
    optimizer, scaler = torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu", init_scale=1024.0)

    for window in plan_of(10, 7, 7).windows([samples(ROWS), samples(13)]):
        with window.update(optimizer, clip=0.1, scaler=scaler) as update:
            for batch in window:
                update.backward(mean_loss(model, batch))
    full_batch(reference, torch.optim.Adam(reference.parameters()), mean_loss, [samples(ROWS), samples(13)], clip=0.1)

    assert distance(model, reference) < 1e-12


def test_a_window_without_rows_changes_nothing() -> None:
    model = classifier()
    before = copy.deepcopy(model)
    (window,) = plan_of(12, 12).windows([samples(0)])

    with window.update(torch.optim.AdamW(model.parameters())) as update:
        for batch in window:
            update.backward(mean_loss(model, batch))

    assert update.result is not None
    assert update.result.skipped
    assert distance(model, before) == 0


def test_what_the_stepper_refuses_a_window_refuses_too() -> None:
    model = classifier()
    (window,) = plan_of(12, 12).windows([samples(ROWS)])
    twice = [torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)]

    with pytest.raises(UsageError, match="in two optimizers"):
        window.update(twice)

"""Advice that is honest: nothing where nothing changes, a rule only where one is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoaccum.plans import Plan
from autoaccum.recipe import advice, fewer_steps, learning_rate, low_precision
from autoaccum.records import MemoryModel, ModelInfo
from autoaccum.units import GIB, MIB


def model(optimizer: str, beta1: float | None = None, dtype: str = "float32") -> ModelInfo:
    return ModelInfo(
        name="Net",
        parameters=1,
        parameter_bytes=4,
        gradient_bytes=300 * MIB,
        optimizer=optimizer,
        beta1=beta1,
        gradient_dtype=dtype,
    )


def memory(per_sample: int, fixed: int) -> MemoryModel:
    return MemoryModel(
        fixed_bytes=fixed, bytes_per_sample=per_sample, overhead_bytes=0, floor_bytes=0, worst_miss_bytes=0
    )


@pytest.mark.parametrize("reference", [None, 512])
def test_splitting_alone_changes_nothing(reference: int | None) -> None:
    said = learning_rate(512, reference, model("AdamW", 0.9))

    assert "times" not in said
    assert "multiply" not in said
    assert "counted in updates" in said


def test_sgd_follows_the_batch_linearly_with_a_warm_up() -> None:
    said = learning_rate(512, 128, model("SGD"))

    assert "from 128 to 512 (4 times)" in said
    assert "multiply SGD's learning rate by 4, warming up" in said
    assert "divided by 4" in said


def test_a_smaller_batch_needs_no_warm_up() -> None:
    said = learning_rate(128, 512, model("SGD"))

    assert "by 0.25 (linear rule" in said


def test_adam_follows_the_square_root_and_moves_its_betas() -> None:
    said = learning_rate(512, 128, model("AdamW", 0.9))

    assert "AdamW's learning rate by 2 (square-root rule" in said
    assert "set beta1 to 0.6" in said


def test_where_adams_rule_ends_it_is_not_given() -> None:
    said = learning_rate(1280, 128, model("Adam", 0.9))  # 10 * (1 - 0.9) = 1

    assert "does not reach that far" in said
    assert "tune the learning rate again" in said


@pytest.mark.parametrize("optimizer", ["Lion", ""])
def test_without_a_known_rule_none_is_invented(optimizer: str) -> None:
    said = learning_rate(512, 128, model(optimizer))

    assert "no rule is known" in said
    assert "multiply" not in said


@pytest.mark.parametrize(("micro_batch", "peak", "said"), [(32, GIB, True), (64, GIB, False), (32, 9 * GIB, False)])
def test_what_the_gradients_cost_is_said_where_they_stay_and_it_matters(
    micro_batch: int, peak: int, said: bool
) -> None:
    plan = replace(Plan.of(target_batch=64, micro_batch=micro_batch), peak_bytes=peak)

    found = advice(plan, model("SGD"), None, None)

    assert any("300.0 MiB of the peak of 1.00 GiB" in sentence for sentence in found) == said


def test_few_steps_need_no_alternative() -> None:
    assert fewer_steps(Plan.of(target_batch=64, micro_batch=16), memory(GIB, GIB)) == []


def test_many_steps_name_what_would_make_room() -> None:
    plan = Plan.of(target_batch=64, micro_batch=4)

    (activations,) = fewer_steps(plan, memory(GIB, GIB))
    (weights,) = fewer_steps(plan, memory(MIB, GIB))

    assert "activations take 4.00 GiB of the peak and all else 1.00 GiB: activation checkpointing" in activations
    assert "would make more room than checkpointing" in weights


def test_very_many_steps_question_the_batch() -> None:
    assert "a smaller effective batch may serve" in fewer_steps(Plan.of(target_batch=64, micro_batch=1), None)[-1]


@pytest.mark.parametrize(("dtype", "steps", "warned"), [("bfloat16", 4, 1), ("bfloat16", 2, 0), ("float32", 64, 0)])
def test_sums_in_half_precision_are_warned_of(dtype: str, steps: int, warned: int) -> None:
    plan = Plan.of(target_batch=steps, micro_batch=1)

    assert len(low_precision(plan, model("SGD", dtype=dtype))) == warned

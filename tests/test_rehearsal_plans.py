"""The row of one card, with a stage whose memory is a line that is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from autoaccum.anatomy.traits import Traits
from autoaccum.errors import UsageError, WorkloadError
from autoaccum.records import PLAIN, Knobs, ModelInfo, Outcome, Request, Sample
from autoaccum.rehearsal import variants
from autoaccum.rehearsal.bands import DENSE, MIXED, PRODUCTS, Band, band_for, forecast
from autoaccum.rehearsal.cards import parse
from autoaccum.rehearsal.constants import DEFAULT, Constant
from autoaccum.rehearsal.fitting import Fitting, budget_on
from autoaccum.rehearsal.record import Row
from autoaccum.rehearsal.stage import generation, lacks_kernels

GIB = 1 << 30
BAND = Band(kind="made up", low=-0.02, high=0.10, margin=0.05, models=1)


class Stage:
    """Half a GiB, and so much for each sample; gradients of a quarter GiB stay where there are several steps."""

    def __init__(self, sample_bytes: int, breaks_at: int | None = None, gradient_bytes: int = GIB // 4) -> None:
        self._gradient_bytes = gradient_bytes
        self.ran: dict[tuple[int, bool], Sample] = {}
        self._sample_bytes = sample_bytes
        self._breaks_at = breaks_at

    @property
    def model(self) -> ModelInfo:
        return ModelInfo(name="made up", parameters=1, parameter_bytes=GIB // 4, gradient_bytes=self._gradient_bytes)

    def samples(self, knobs: Knobs = PLAIN) -> tuple[Sample, ...]:
        return tuple(self.ran.values())

    def unsupported(self) -> dict[str, str]:
        return {}

    def environment(self) -> dict[str, object]:
        return {"torch": "2.15.0", "cuda": "13.2", "architectures": "sm_75 sm_80 sm_86 sm_90"}

    def run(self, size: int, *, alone: bool, knobs: Knobs = PLAIN) -> Sample:
        reserved = GIB // 2 + size * self._sample_bytes + (0 if alone else self._gradient_bytes)
        broken = self._breaks_at is not None and size >= self._breaks_at
        self.ran[size, alone] = Sample(
            trial=1,
            phase="rehearse",
            micro_batch=size,
            accumulation_steps=1 if alone else 2,
            outcome=Outcome.OOM if broken else Outcome.OK,
            peak_reserved_bytes=reserved,
            message="out of memory in make_batch" if broken else "",
        )
        return self.ran[size, alone]


@pytest.fixture(autouse=True)
def _no_constants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOACCUM_CACHE", str(tmp_path))


def fitted(stage: Any, gpu: str = "24GiB", **asked: Any) -> Row:
    request = Request(workload="model.py", **{"target_batch": 512, **asked})
    return Fitting(parse(gpu)[0], stage, request, BAND).row()


def test_the_plan_is_exact_and_leaves_its_margin() -> None:
    row = fitted(Stage(GIB // 4))

    assert row.plan is not None
    assert sum(row.plan.micro_batches) == 512
    assert row.plan.peak_bytes is not None
    margin = math.hypot(BAND.margin * row.plan.peak_bytes, DEFAULT.high_bytes - DEFAULT.typical_bytes)
    assert row.plan.peak_bytes + 0.9 * margin <= row.limit_bytes == 24 * GIB


def test_the_next_size_is_named_with_what_it_would_need_and_does_not_fit() -> None:
    row = fitted(Stage(GIB // 4))

    assert row.plan is not None
    assert row.next_micro_batch is not None
    assert row.next_micro_batch > row.plan.micro_batch
    assert row.next_needed_bytes is not None
    assert row.needed_bytes is not None
    assert row.needed_bytes <= row.limit_bytes < row.next_needed_bytes


def test_a_whole_batch_that_fits_needs_no_steps_and_has_no_next_size() -> None:
    row = fitted(Stage(1 << 20))

    assert row.plan is not None
    assert row.plan.accumulation_steps == 1
    assert row.next_micro_batch is None


def test_a_whole_batch_may_fit_where_gradients_that_stay_would_not() -> None:
    stage = Stage((24 * GIB - GIB // 2) // 512 * 85 // 100)

    row = fitted(stage)

    assert row.plan is not None
    assert row.plan.accumulation_steps == 1
    assert (512, True) in stage.ran
    assert (512, False) not in stage.ran


def test_a_whole_batch_is_tried_also_where_no_smaller_size_fits() -> None:
    row = fitted(Stage(1 << 20, gradient_bytes=22 * GIB), target_batch=16, memory_budget="20GiB")

    assert row.plan is not None
    assert (row.plan.micro_batch, row.plan.accumulation_steps) == (16, 1)


@pytest.mark.parametrize(("gpu", "runs"), [("v100-16gb", False), ("t4", True), ("rtx-4090", True), ("b200", False)])
def test_a_card_that_this_torch_has_no_kernels_for_has_no_plan(gpu: str, runs: bool) -> None:
    row = fitted(Stage(1 << 20), gpu)

    assert (row.plan is not None) == runs
    assert ("has no kernels for compute capability" in row.message) != runs


def test_ptx_runs_on_later_cards() -> None:
    assert lacks_kernels({"architectures": "sm_80 sm_90 compute_90"}, "12.0") is None
    assert lacks_kernels({"architectures": "sm_80 sm_90"}, "12.0") is not None
    assert lacks_kernels({}, "12.0") is None


def test_cards_share_a_stage_only_where_they_run_the_same_kernels() -> None:
    cards = parse("gtx-1080-ti,t4,a100-40gb,l4,h100-80gb,b200,rtx-5090")

    assert [generation(card) for card in cards] == ["7", "7", "8", "8", "9", "10", "12"]


@pytest.mark.parametrize(
    ("flops", "band"),
    [
        ({"matmul": 6.0, "attention": 1.0, "dense_convolution": 3.0}, PRODUCTS),
        ({"matmul": 6.0, "attention": 0.9, "dense_convolution": 3.1}, MIXED),
        ({"matmul": 5.0, "dense_convolution": 5.0}, DENSE),
        ({"other_convolution": 6.0, "dense_convolution": 4.0}, MIXED),
        ({"matmul": 0.0}, MIXED),
    ],
)
def test_a_models_kind_is_what_most_of_its_operations_are(flops: dict[str, float], band: Band) -> None:
    traits = Traits(micro_batch=2, flops=flops, host_reads=(), cudnn_benchmark=False, parameter_bytes=1)

    assert band_for(traits) is band


def test_where_nothing_fits_the_row_says_what_the_smallest_needs() -> None:
    row = fitted(Stage(30 * GIB))

    assert row.plan is None
    assert row.message.startswith("nothing fits: micro-batch 1 wants 3")


def test_what_the_host_cannot_make_is_no_plan_and_no_error() -> None:
    row = fitted(Stage(1 << 20, breaks_at=100))

    assert row.plan is not None
    assert row.plan.micro_batch < 100


def test_a_change_that_raises_at_a_larger_size_costs_its_own_row_alone() -> None:
    class Raising(Stage):
        def run(self, size: int, *, alone: bool, knobs: Knobs = PLAIN) -> Sample:
            if size > 2:
                raise WorkloadError("the backward pass: not with me")
            return super().run(size, alone=alone, knobs=knobs)

    card, request = parse("24GiB")[0], Request(workload="model.py", target_batch=512)
    changed = Fitting(card, Raising(GIB // 4), request, BAND, variants.parse("bf16")[0])  # type: ignore[arg-type]
    plain = Fitting(card, Raising(GIB // 4), request, BAND)  # type: ignore[arg-type]

    assert changed.row().message == "the backward pass: not with me"
    with pytest.raises(WorkloadError):
        plain.row()


def test_ranks_share_the_batch() -> None:
    row = fitted(Stage(GIB // 4), world_size=4)

    assert row.plan is not None
    assert row.plan.world_size * sum(row.plan.micro_batches) == 512


def test_a_share_of_the_card_can_be_asked_for() -> None:
    whole, half = fitted(Stage(GIB // 4)), fitted(Stage(GIB // 4), memory_budget="50%")

    assert whole.plan is not None
    assert half.plan is not None
    assert half.plan.peak_bytes is not None
    assert half.plan.peak_bytes <= half.limit_bytes == 12 * GIB
    assert half.plan.micro_batch < whole.plan.micro_batch


def test_a_budget_beyond_the_card_is_the_card() -> None:
    assert budget_on(parse("8GiB")[0], "20GiB").limit_bytes == 8 * GIB


def test_errors_of_the_constant_and_of_the_model_are_added_as_independent_ones_are() -> None:
    constant = Constant(typical_bytes=GIB, low_bytes=GIB, high_bytes=GIB + 3 * GIB // 80, source="made up")

    expected = forecast(GIB // 2, BAND, constant)

    assert expected.peak_bytes == GIB + GIB // 2
    assert expected.high_bytes == expected.peak_bytes + GIB // 16  # 3, 4 and 5 eightieths
    assert expected.low_bytes == expected.peak_bytes - round(0.01 * GIB)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bf16", ["bf16 autocast"]),
        ("checkpoint", ["all blocks checkpointed"]),
        ("checkpoint+bf16, sgd", ["bf16 autocast, all blocks checkpointed", "SGD without momentum"]),
        ("fused-loss", ["a fused cross entropy"]),
    ],
)
def test_changes_are_asked_for_by_name(text: str, words: list[str]) -> None:
    assert [variant.words for variant in variants.parse(text)] == words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chekpoint", "nothing that --what-if knows: did you mean checkpoint"),
        ("", "known are"),
        ("bf16+fp16", "sets precision twice"),
    ],
)
def test_a_change_that_is_not_known_is_a_mistake_of_the_users(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        variants.parse(text)

"""What tuning brought and what it left open, in words."""

from __future__ import annotations

from dataclasses import replace

from autoaccum.plans import Plan
from autoaccum.records import Outcome, Sample
from autoaccum.tuning.costs import gained, prices
from autoaccum.tuning.results import Duel, Fate, Measurement, Tuning


def row(trial: int, micro_batch: int, seconds: float, **options: object) -> Measurement:
    return Measurement(
        trial=trial,
        outcome=Fate.OK,
        micro_batch=micro_batch,
        accumulation_steps=64 // micro_batch,
        options=options,
        update_seconds=seconds,
    )


def duel(incumbent: int, challenger: int, ratio: float, winner: int) -> Duel:
    ends = {"ratio_low": ratio * 0.9, "ratio_high": ratio * 1.1}
    return Duel(incumbent=incumbent, challenger=challenger, ratio=ratio, rounds=3, winner=winner, **ends)


TUNING = Tuning(
    objective="throughput",
    study="a",
    storage="",
    seconds=30.0,
    seconds_allowed=60.0,
    allowed=("bf16", "fused"),
    unsupported={},
    best=0,
    largest=0,
    trials=(row(0, 64, 1.0), row(1, 16, 0.9), row(2, 64, 0.8, precision="bf16"), row(3, 64, 1.1, optimizer="fused")),
)


def test_the_gain_is_the_product_of_the_duels_that_led_to_the_best() -> None:
    won = replace(TUNING, best=2, duels=(duel(0, 1, 0.8, winner=1), duel(1, 2, 0.5, winner=2)))

    assert gained(won) == "4 trials in 30 s: 2.50 times as fast as the largest micro-batch that fits (64)"


def test_without_duels_the_gain_is_that_of_the_medians() -> None:
    assert "1.25 times as fast" in gained(replace(TUNING, best=2))


def test_where_nothing_is_faster_it_says_so() -> None:
    assert gained(TUNING) == (
        "4 trials in 30 s: nothing is faster than the largest micro-batch that fits, by more than the noise"
    )


def test_what_looked_faster_and_was_not_settled_is_told() -> None:
    said = gained(replace(TUNING, duels=(duel(0, 2, 0.5, winner=0),)))

    assert "micro-batch 64 with bf16 autocast looked 2.00 times as fast and there was no time to settle it" in said
    assert said.endswith("give more --tune-seconds")


def test_knobs_that_there_was_no_time_for_are_told() -> None:
    late = replace(TUNING, seconds=61.0, trials=TUNING.trials[:2])

    assert "bf16, fused not tried" in gained(late)
    assert "not tried" not in gained(replace(late, seconds=59.0))


def test_the_price_of_checkpointing_is_measured_against_the_same_size_without() -> None:
    plan = replace(Plan.of(target_batch=64, micro_batch=64), options={"checkpoint": "all"})
    tuning = replace(TUNING, trials=(row(0, 64, 1.0), row(1, 64, 1.3, checkpoint="all")))

    assert prices(plan, tuning, ()) == [
        "all blocks checkpointed: an update takes +30% against the same micro-batch without, measured"
    ]


def test_where_nothing_else_fits_the_price_is_the_forward_pass() -> None:
    plan = replace(Plan.of(target_batch=64, micro_batch=64), options={"checkpoint": "half"})
    sample = Sample(
        trial=1, phase="confirm", micro_batch=64, accumulation_steps=1, outcome=Outcome.OK,
        step_seconds=1.0, forward_seconds=0.3,
    )  # fmt: skip

    (said,) = prices(plan, None, (sample,))

    assert "up to 30% of an update (0.3 of 1 s is the forward pass, measured)" in said
    assert prices(Plan.of(target_batch=64, micro_batch=64), None, (sample,)) == []

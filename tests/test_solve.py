from __future__ import annotations

from typing import Any

import pytest

from autoaccum.errors import UsageError
from autoaccum.fit import TimeModel
from autoaccum.plans import Plan, rank_share
from autoaccum.records import Budget, MemoryModel, Outcome, Sample
from autoaccum.solve import Known, candidates, shortlist, solve, splits

BUDGET = Budget(limit_bytes=1000, reserve_bytes=0, source="user")


def known(fixed_seconds: float = 0.01, samples: tuple[Sample, ...] = ()) -> Known:
    return Known(
        samples=samples,
        memory=MemoryModel(fixed_bytes=10, bytes_per_sample=2, overhead_bytes=5, floor_bytes=0, worst_miss_bytes=0),
        time=TimeModel(fixed_seconds=fixed_seconds, seconds_per_sample=0.001, optimizer_seconds=0.1),
        budget=BUDGET,
    )


def best(target: int, limit: int, world_size: int = 1, split: str = "auto", fixed_seconds: float = 0.01) -> Plan:
    return solve(target, world_size, split, lambda size: size <= limit, known(fixed_seconds))[0]


@pytest.mark.parametrize("split", ["auto", "even", "uneven"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("limit", [1, 3, 7, 64, 100, 4096])
@pytest.mark.parametrize("target", [4, 8, 12, 52, 256, 500, 512, 1004])
def test_every_plan_reaches_the_target_exactly(target: int, limit: int, world_size: int, split: str) -> None:
    plans = solve(target, world_size, split, lambda size: size <= limit, known())

    assert plans
    for plan in plans:
        assert sum(plan.micro_batches) * world_size == plan.effective_batch == target
        assert len(plan.micro_batches) == plan.accumulation_steps
        assert plan.micro_batch == max(plan.micro_batches) <= limit
        assert 4 * plan.micro_batch <= 5 * min(plan.micro_batches) or plan.micro_batch - min(plan.micro_batches) == 1
        assert plan.even or split != "even"


@pytest.mark.parametrize("rank_batch", [1, 2, 12, 97, 512, 1000])
def test_the_candidates_are_the_largest_sizes_of_every_number_of_steps(rank_batch: int) -> None:
    expected = sorted({-(-rank_batch // steps) for steps in range(1, rank_batch + 1)})

    assert list(candidates(rank_batch, "uneven")) == expected
    assert list(candidates(rank_batch, "even")) == [n for n in range(1, rank_batch + 1) if rank_batch % n == 0]


def test_uneven_splits_are_aligned_as_well_as_can_be_the_plain_one_last() -> None:
    assert splits(512, 6) == [
        (88, 88, 88, 88, 80, 80),
        (88, 88, 84, 84, 84, 84),
        (86, 86, 86, 86, 84, 84),
        (86, 86, 85, 85, 85, 85),
    ]
    assert splits(100, 6) == [(20, 16, 16, 16, 16, 16), (18, 18, 16, 16, 16, 16), (17, 17, 17, 17, 16, 16)]
    assert splits(509, 6) == [(85, 85, 85, 85, 85, 84)]


def test_an_even_split_is_the_only_one_for_its_steps() -> None:
    assert splits(512, 8) == [(64,) * 8]
    assert splits(36, 4) == [(9,) * 4]
    assert splits(7, 1) == [(7,)]


def test_small_sizes_are_not_aligned_at_the_price_of_large_differences() -> None:
    # With one step more, multiples of 8 would be 32 and 24.
    assert splits(504, 15)[0] == (40,) * 3 + (32,) * 12
    assert splits(504, 16)[0] == (32,) * 14 + (28,) * 2
    assert splits(10, 4) == [(3, 3, 2, 2)]


def test_a_batch_has_no_more_steps_than_samples() -> None:
    assert splits(3, 3) == [(1, 1, 1)]
    assert splits(3, 4) == []


@pytest.mark.parametrize(("limit", "largest", "smallest"), [(88, 88, 80), (87, 86, 84), (86, 86, 84)])
def test_sizes_are_aligned_only_where_the_largest_still_fits(limit: int, largest: int, smallest: int) -> None:
    plan = best(512, limit, split="uneven")

    assert (plan.accumulation_steps, plan.micro_batch, min(plan.micro_batches)) == (6, largest, smallest)


def test_an_aligned_plan_is_not_as_large_as_one_of_fewer_steps() -> None:
    # 13 steps of 520 are 40 each; 14 could be 40 and 32, or 40 and 36: more steps, and no memory saved.
    plans = {plan.accumulation_steps: plan for plan in solve(520, 1, "uneven", lambda size: size <= 64, known())}

    assert plans[13].micro_batch == splits(520, 14)[0][0] == splits(520, 14)[1][0] == 40
    assert plans[14].micro_batches == (38,) * 8 + (36,) * 6
    assert len({plan.micro_batch for plan in plans.values()}) == len(plans)


def test_the_fewest_steps_win() -> None:
    assert best(512, limit=100, split="uneven").accumulation_steps == 6
    assert best(512, limit=100, split="even").accumulation_steps == 8


def test_auto_stays_even_unless_uneven_is_clearly_faster() -> None:
    assert best(512, limit=100, fixed_seconds=0.001).even
    assert best(512, limit=100, fixed_seconds=1.0).micro_batches == (88, 88, 88, 88, 80, 80)


@pytest.mark.parametrize(
    ("target", "limit", "steps"),
    [
        pytest.param(217, 30, 31, id="even in 31 steps, uneven in 8"),
        pytest.param(145, 28, 6, id="even in 29 steps, uneven in 6"),
        pytest.param(509, 100, 6, id="even in 509 steps, uneven in 6"),
    ],
)
def test_auto_does_not_stay_even_at_more_than_four_times_the_steps(target: int, limit: int, steps: int) -> None:
    assert best(target, limit, fixed_seconds=1e-6).accumulation_steps == steps


def test_a_prime_target_is_reached_by_an_uneven_plan() -> None:
    plan = best(509, limit=100)

    assert plan.accumulation_steps == 6
    assert sum(plan.micro_batches) == 509


@pytest.mark.parametrize(("limit", "steps"), [(100, [1_000_003]), (1_000_003, [1, 1_000_003])])
def test_a_large_prime_has_two_even_plans_at_most(limit: int, steps: list[int]) -> None:
    plans = solve(1_000_003, 1, "even", lambda size: size <= limit, known())

    assert [plan.accumulation_steps for plan in plans] == steps


def test_the_best_even_plan_is_always_on_the_short_list() -> None:
    # Nothing near the limit divides 509: its only even plans are 1 x 509 and 509 x 1.
    plans = solve(509, 1, "auto", lambda size: size <= 100, known())

    short = shortlist(plans)
    assert len(short) < len(plans)
    assert short[0] == plans[0]
    assert [plan.accumulation_steps for plan in short if plan.even] == [509]


def test_peaks_are_measured_where_the_size_ran_and_predicted_elsewhere() -> None:
    ran = Sample(trial=1, phase="grow", micro_batch=64, accumulation_steps=2, outcome=Outcome.OK, device_used_bytes=170)
    plans = {p.micro_batch: p for p in solve(512, 1, "even", lambda size: size <= 64, known(samples=(ran,)))}

    assert (plans[64].peak_bytes, plans[64].headroom_bytes, plans[64].measured) == (170, 830, True)
    assert (plans[32].peak_bytes, plans[32].measured) == (5 + 10 + 64, False)


def test_a_run_without_accumulation_does_not_vouch_for_a_plan_with_it() -> None:
    ran = Sample(trial=1, phase="grow", micro_batch=64, accumulation_steps=1, outcome=Outcome.OK, device_used_bytes=170)

    assert not solve(512, 1, "even", lambda size: size <= 64, known(samples=(ran,)))[0].measured


def slow(size: int, step_seconds: float, **more: Any) -> Sample:
    """A run of two micro-steps, with retries of the allocator in both of its updates unless told otherwise."""
    values: dict[str, Any] = {
        "trial": 1,
        "phase": "grow",
        "micro_batch": size,
        "accumulation_steps": 2,
        "outcome": Outcome.OK,
        "step_seconds": step_seconds,
        "optimizer_seconds": 0.2,
        "alloc_retries": 2,
    }
    return Sample(**{**values, **more})


def speeds(*samples: Sample, target: int = 512, split: str = "even") -> dict[int, float | None]:
    plans = solve(target, 1, split, lambda size: size <= 128, known(samples=samples))
    return {plan.micro_batch: plan.samples_per_second for plan in plans}


def test_a_size_that_ran_only_with_retries_is_ranked_by_its_measured_time() -> None:
    # The model gives 0.65 s for 4 x 128 and 0.69 s for 8 x 64.
    assert list(speeds())[:2] == [128, 64]
    ranked = speeds(slow(128, step_seconds=0.2 + 2 * 0.15))

    assert next(iter(ranked)) == 64
    assert ranked[128] == pytest.approx(512 / (4 * 0.15 + 0.2))
    assert ranked[64] == speeds()[64]


def test_a_size_that_is_fast_in_spite_of_retries_keeps_its_place() -> None:
    assert next(iter(speeds(slow(128, step_seconds=0.2 + 2 * 0.11)))) == 128


@pytest.mark.parametrize(
    "free",
    [
        pytest.param({"alloc_retries": 1}, id="a retry in the warm-up"),
        pytest.param({"alloc_retries": 0}, id="no retries"),
        pytest.param({"alloc_retries": None}, id="retries not counted"),
        pytest.param({"accumulation_steps": 1}, id="without accumulation"),
        pytest.param({"outcome": Outcome.OOM}, id="did not run"),
        pytest.param({"step_seconds": None}, id="not timed"),
        pytest.param({"size": 100}, id="another size"),
    ],
)
def test_the_model_tells_the_time_of_all_other_sizes(free: dict[str, Any]) -> None:
    assert speeds(slow(**{"size": 128, "step_seconds": 9.0, **free})) == speeds()


@pytest.mark.parametrize("order", [1, -1])
def test_a_size_that_also_ran_without_retries_is_ranked_by_the_model(order: int) -> None:
    samples = [slow(128, step_seconds=9.0), slow(128, step_seconds=0.5, alloc_retries=0)]

    assert speeds(*samples[::order]) == speeds()


def test_the_smaller_sizes_of_a_plan_are_as_slow_as_its_largest() -> None:
    # 4 x 103 + 102 = 514 is no multiple of 4; 104 + 104 + 102 + 102 + 102 is the split.
    ranked = speeds(slow(104, step_seconds=0.2 + 2 * 0.52), target=514, split="uneven")

    assert ranked[104] == pytest.approx(514 / (514 * 0.005 + 0.2))


def test_the_fewest_steps_win_where_nothing_is_timed() -> None:
    untimed = Known(samples=(slow(128, step_seconds=9.0),), memory=None, time=None, budget=BUDGET)

    plans = solve(512, 1, "even", lambda size: size <= 128, untimed)

    assert [plan.accumulation_steps for plan in plans] == [4, 8, 16, 32, 64, 128, 256, 512]
    assert plans[0].samples_per_second is None


def test_nothing_fits_is_no_plan() -> None:
    assert solve(512, 1, "auto", lambda size: False, known()) == []


def test_ranks_share_the_target_equally_or_not_at_all() -> None:
    assert rank_share(512, 4) == 128
    for target, ranks, choices in ((510, 4, "508 or 512"), (509, 2, "508 or 510"), (3, 8, "8")):
        with pytest.raises(UsageError) as raised:
            solve(target, ranks, "auto", lambda size: True, known())
        assert str(raised.value) == (
            f"a target batch of {target} cannot be shared equally by {ranks} ranks: take {choices}"
        )

from __future__ import annotations

import pytest

from autoaccum.errors import UsageError
from autoaccum.fit import TimeModel
from autoaccum.plans import Plan, rank_share
from autoaccum.records import Budget, MemoryModel, Outcome, Sample
from autoaccum.solve import Known, candidates, shortlist, solve

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
        assert plan.micro_batch - min(plan.micro_batches) <= 1
        assert plan.even or split != "even"


@pytest.mark.parametrize("rank_batch", [1, 2, 12, 97, 512, 1000])
def test_the_candidates_are_the_largest_sizes_of_every_number_of_steps(rank_batch: int) -> None:
    expected = sorted({-(-rank_batch // steps) for steps in range(1, rank_batch + 1)})

    assert list(candidates(rank_batch, "uneven")) == expected
    assert list(candidates(rank_batch, "even")) == [n for n in range(1, rank_batch + 1) if rank_batch % n == 0]


def test_the_fewest_steps_win() -> None:
    assert best(512, limit=100, split="uneven").accumulation_steps == 6
    assert best(512, limit=100, split="even").accumulation_steps == 8


def test_auto_stays_even_unless_uneven_is_clearly_faster() -> None:
    assert best(512, limit=100, fixed_seconds=0.001).even
    assert best(512, limit=100, fixed_seconds=1.0).micro_batches == (86, 86, 85, 85, 85, 85)


def test_a_prime_target_is_reached_by_an_uneven_plan() -> None:
    plan = best(509, limit=100)

    assert plan.accumulation_steps == 6
    assert sum(plan.micro_batches) == 509


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


def test_nothing_fits_is_no_plan() -> None:
    assert solve(512, 1, "auto", lambda size: False, known()) == []


def test_ranks_share_the_target_equally_or_not_at_all() -> None:
    assert rank_share(512, 4) == 128
    with pytest.raises(UsageError, match="take 508 or 512"):
        rank_share(510, 4)
    with pytest.raises(UsageError, match="take 8"):
        rank_share(3, 8)

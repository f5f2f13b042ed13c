from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoaccum.errors import UsageError
from autoaccum.fit import TimeModel
from autoaccum.plans import Plan
from autoaccum.records import Budget, Outcome, Sample
from autoaccum.solve import SPLITS, WORTH_UNEVEN, Known, candidates, solve, splits

BUDGET = Budget(limit_bytes=1 << 30, reserve_bytes=0, source="user")
UNTIMED = Known(samples=(), memory=None, time=None, budget=BUDGET)
LARGEST = 4000

# The same cases in every run, on every machine: what fails here fails for whoever looks. Nothing is kept on disk.
always = settings(max_examples=150, deadline=None, derandomize=True, database=None)

# Numbers with many divisors are rare among those drawn at random.
shares = st.integers(1, LARGEST) | st.integers(1, LARGEST // 24).map(lambda units: 24 * units)
world_sizes = st.sampled_from([1, 2, 3, 8])
limits = st.integers(1, LARGEST) | st.integers(1, 100)
sorts = st.sampled_from(SPLITS)


def seconds(least: float = 0.0) -> st.SearchStrategy[float]:
    return st.floats(least, 10.0, allow_subnormal=False)


def models(fixed: st.SearchStrategy[float] | None = None) -> st.SearchStrategy[TimeModel]:
    return st.builds(
        TimeModel,
        fixed_seconds=seconds() if fixed is None else fixed,
        seconds_per_sample=seconds(),
        optimizer_seconds=seconds(),
    )


def samples(size: int) -> st.SearchStrategy[Sample]:
    """Give runs of a size: timed or not, with retries or without."""
    return st.builds(
        lambda optimizer, computing, retries, steps, outcome: Sample(
            trial=1,
            phase="grow",
            micro_batch=size,
            accumulation_steps=steps,
            outcome=outcome,
            step_seconds=None if optimizer is None else optimizer + computing * steps,
            optimizer_seconds=optimizer,
            alloc_retries=retries,
        ),
        optimizer=st.none() | seconds(),
        computing=seconds(0.01),
        retries=st.none() | st.integers(0, 3),
        steps=st.integers(1, 3),
        outcome=st.sampled_from([Outcome.OK, Outcome.OOM]),
    )


lore = st.builds(
    lambda runs, time: Known(samples=tuple(runs), memory=None, time=time, budget=BUDGET),
    runs=st.lists(st.integers(1, 200).flatmap(samples), max_size=5),
    time=st.none() | models(),
)


def up_to(limit: int) -> Callable[[int], bool]:
    return lambda size: size <= limit


def alignment(sizes: tuple[int, ...]) -> int:
    """Give what all sizes are multiples of: 8, 4, 2 or 1."""
    return next(unit for unit in (8, 4, 2, 1) if not any(size % unit for size in sizes))


@always
@given(shares, world_sizes, sorts, limits, lore)
def test_every_plan_is_exact_and_fits(share: int, ranks: int, split: str, limit: int, known: Known) -> None:
    plans = solve(share * ranks, ranks, split, up_to(limit), known)

    assert plans
    for plan in plans:
        assert sum(plan.micro_batches) * ranks == plan.effective_batch == share * ranks
        assert plan.world_size == ranks
        assert plan.micro_batch == plan.micro_batches[0] <= limit
        assert list(plan.micro_batches) == sorted(plan.micro_batches, reverse=True)
        assert plan.micro_batches[-1] >= 1
        assert plan.accumulation_steps == len(plan.micro_batches)


@always
@given(shares, sorts, limits, lore)
def test_there_is_one_plan_for_each_candidate_that_fits(share: int, split: str, limit: int, known: Known) -> None:
    plans = sorted(solve(share, 1, split, up_to(limit), known), key=lambda plan: plan.accumulation_steps)

    fitting = [size for size in reversed(candidates(share, split)) if size <= limit]
    assert [plan.accumulation_steps for plan in plans] == [-(-share // size) for size in fitting]
    # More steps always save memory, so that a size says which plan is meant.
    assert all(fewer.micro_batch > more.micro_batch for fewer, more in pairwise(plans))


@always
@given(shares, limits, lore)
def test_even_plans_are_even_and_all_of_them(share: int, limit: int, known: Known) -> None:
    plans = solve(share, 1, "even", up_to(limit), known)

    assert all(plan.even for plan in plans)
    divisors = [size for size in range(1, min(share, limit) + 1) if share % size == 0]
    assert sorted(plan.micro_batch for plan in plans) == divisors


@always
@given(shares, limits, models(fixed=seconds(1e-6)))
def test_the_fewest_steps_win_where_each_costs_time(share: int, limit: int, time: TimeModel) -> None:
    plans = solve(share, 1, "uneven", up_to(limit), replace(UNTIMED, time=time))

    assert plans[0].accumulation_steps == -(-share // limit)
    assert [p.accumulation_steps for p in plans] == sorted(p.accumulation_steps for p in plans)


@always
@given(shares, sorts, limits)
def test_the_fewest_steps_win_where_nothing_is_timed(share: int, split: str, limit: int) -> None:
    plans = [plan for plan in solve(share, 1, split, up_to(limit), UNTIMED) if split != "auto" or plan.even]

    assert [p.accumulation_steps for p in plans] == sorted(p.accumulation_steps for p in plans)


@always
@given(shares, limits, models())
def test_auto_takes_an_uneven_plan_only_where_it_is_clearly_better(share: int, limit: int, time: TimeModel) -> None:
    plans = solve(share, 1, "auto", up_to(limit), replace(UNTIMED, time=time))
    best, even = plans[0], next(plan for plan in plans if plan.even)
    fewest_even = min(plan.accumulation_steps for plan in plans if plan.even)

    if not best.even:
        ratio = time.update_seconds(even.micro_batches) >= WORTH_UNEVEN * time.update_seconds(best.micro_batches)
        assert ratio or fewest_even > 4 * best.accumulation_steps


@always
@given(shares, st.data())
def test_splits_differ_by_their_alignment_and_no_more(share: int, data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, share) | st.integers(1, min(share, 40)))
    found = splits(share, steps)

    assert len(set(found)) == len(found)
    assert all(sum(sizes) == share and len(sizes) == steps for sizes in found)
    *aligned, plain = found
    assert plain[0] - plain[-1] <= 1
    if share % steps == 0:
        assert found == [(share // steps,) * steps]
        return
    units = [alignment(sizes) for sizes in found]
    assert units == sorted(units, reverse=True)
    for sizes in aligned:
        # The sizes differ by what they are multiples of, and there are just two of them.
        assert sizes[0] - sizes[-1] == alignment(sizes) > 1
        assert set(sizes) == {sizes[0], sizes[-1]}
        assert 4 * sizes[0] <= 5 * sizes[-1]


@always
@given(shares, st.data())
def test_no_alignment_is_missed_that_divides_the_batch(share: int, data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, max(1, share // 8)))
    found = {alignment(sizes) for sizes in splits(share, steps)[:-1]}

    if share % steps:
        assert found == {unit for unit in (8, 4, 2) if share % unit == 0 and share // steps >= 4 * unit}


@always
@given(shares, limits)
def test_a_plan_has_the_best_alignment_that_fits_and_saves_memory(share: int, limit: int) -> None:
    plans = sorted(solve(share, 1, "uneven", up_to(limit), UNTIMED), key=lambda plan: plan.accumulation_steps)

    above = limit + 1
    for plan in plans:
        room = [sizes for sizes in splits(share, plan.accumulation_steps) if sizes[0] < above]
        assert plan.micro_batches == room[0]
        above = plan.micro_batch


@always
@given(shares, sorts, limits, lore)
def test_speeds_order_the_plans_of_a_kind(share: int, split: str, limit: int, known: Known) -> None:
    plans = solve(share, 1, split, up_to(limit), known)

    def fast(kind: list[Plan]) -> list[Any]:
        return [plan.samples_per_second for plan in kind if plan.samples_per_second is not None]

    for kind in ([p for p in plans if p.even], plans if split == "uneven" else []):
        if known.time is not None:
            assert fast(kind) == sorted(fast(kind), reverse=True)


@always
@given(st.integers(1, LARGEST), st.integers(2, 64))
def test_a_target_that_ranks_cannot_share_is_refused_in_one_line_with_some_that_they_can(
    target: int, ranks: int
) -> None:
    if target % ranks == 0:
        assert all(p.effective_batch == target for p in solve(target, ranks, "auto", up_to(8), UNTIMED))
        return
    with pytest.raises(UsageError) as raised:
        solve(target, ranks, "auto", up_to(8), UNTIMED)
    message = str(raised.value)
    assert "\n" not in message
    choices = [int(word) for word in message.partition("take ")[2].split(" or ")]
    assert choices
    assert all(number > 0 and number % ranks == 0 and abs(number - target) < ranks for number in choices)

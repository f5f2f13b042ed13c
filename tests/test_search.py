from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autoaccum.records import Outcome, Sample, Trial
from autoaccum.search import Goal, at_most, bracket, gallop_then_bisect
from autoaccum.solve import candidates


def goal(rank_batch: int, find_max: bool = False, split: str = "uneven") -> Goal:
    return Goal(rank_batch=rank_batch, candidates=candidates(rank_batch, split), find_max=find_max)


def simulate(aim: Goal, outcome: Callable[[Trial], Outcome]) -> list[Sample]:
    """Run the strategy against a made-up device, checking its promise of how many trials remain."""
    samples: list[Sample] = []
    while (trial := gallop_then_bisect(samples, aim)) is not None:
        promised = at_most(samples, aim)
        samples.append(
            Sample(
                trial=len(samples) + 1,
                phase=trial.phase,
                micro_batch=trial.micro_batch,
                accumulation_steps=trial.accumulation_steps,
                outcome=outcome(trial),
                fresh=trial.fresh or not samples,
            )
        )
        after = at_most(samples, aim)
        assert promised is None or aim.certify or (after is not None and after <= promised - 1)
    return samples


def up_to(limit: int) -> Callable[[Trial], Outcome]:
    return lambda trial: Outcome.OK if trial.micro_batch <= limit else Outcome.OOM


@pytest.mark.parametrize("limit", [1, 2, 3, 63, 64, 65, 99, 511, 512, 5000])
@pytest.mark.parametrize("rank_batch", [1, 2, 7, 500, 512])
def test_the_largest_candidate_that_fits_is_found(limit: int, rank_batch: int) -> None:
    aim = goal(rank_batch)

    seen = bracket(simulate(aim, up_to(limit)))

    best = max(size for size in aim.candidates if size <= limit)
    assert seen.largest_ok is not None
    assert best <= seen.largest_ok <= min(limit, rank_batch)


@pytest.mark.parametrize("limit", [1, 2, 3, 63, 64, 65, 99, 5000])
def test_find_max_gives_the_exact_limit(limit: int) -> None:
    seen = bracket(simulate(goal(16, find_max=True), up_to(limit)))

    assert (seen.largest_ok, seen.smallest_failed) == (limit, limit + 1)


def test_no_size_beyond_the_target_is_tried() -> None:
    assert [s.micro_batch for s in simulate(goal(12), up_to(10**9))] == [2, 4, 8, 12]


def without(limit: int, whole: int) -> Callable[[Trial], Outcome]:
    """Sizes up to `limit` fit with accumulation, up to `whole` without."""
    return lambda trial: (
        Outcome.OK if trial.micro_batch <= (limit if trial.accumulation_steps > 1 else whole) else Outcome.OOM
    )


@pytest.mark.parametrize("find_max", [False, True])
@pytest.mark.parametrize("certify", [False, True])
@pytest.mark.parametrize(("rank_batch", "limit"), [(64, 20), (64, 33), (2, 0), (64, 0), (64, 1), (48, 32)])
def test_a_target_that_fits_only_without_accumulation_is_found(
    rank_batch: int, limit: int, find_max: bool, certify: bool
) -> None:
    aim = replace(goal(rank_batch, find_max=find_max), certify=certify)

    samples = simulate(aim, without(limit, whole=rank_batch))

    whole = [s for s in samples if s.micro_batch == rank_batch and s.accumulation_steps == 1]
    if limit == 0 or rank_batch <= 2 * (limit + 1):
        assert [s.ok for s in whole] == [True]


def test_the_whole_target_is_not_tried_where_it_is_far_away() -> None:
    samples = simulate(goal(512), up_to(20))

    assert all(s.accumulation_steps > 1 for s in samples)


def test_a_target_that_fits_at_once_is_tried_without_accumulation() -> None:
    last = simulate(goal(8), up_to(100))[-1]

    assert (last.micro_batch, last.accumulation_steps) == (8, 1)


def test_with_an_even_split_only_divisors_are_bisected() -> None:
    tried = [s.micro_batch for s in simulate(goal(512, split="even"), up_to(100))]

    assert tried == [2, 4, 8, 16, 32, 64, 128]


def test_when_two_does_not_fit_one_is_tried() -> None:
    assert [s.micro_batch for s in simulate(goal(64), up_to(1))] == [2, 1]


def test_nothing_fits_only_after_the_whole_target_was_tried_without_accumulation() -> None:
    tried = [(s.micro_batch, s.accumulation_steps) for s in simulate(goal(64), up_to(0))]

    assert tried == [(2, 2), (1, 2), (64, 1)]


@pytest.mark.parametrize("outcome", [Outcome.KILLED, Outcome.TIMED_OUT])
def test_a_killed_or_hung_size_counts_as_too_large(outcome: Outcome) -> None:
    samples = simulate(goal(64), lambda trial: outcome if trial.micro_batch > 5 else Outcome.OK)

    assert bracket(samples).largest_ok == 5


def test_no_size_is_tried_twice() -> None:
    tried = [s.micro_batch for s in simulate(goal(997), up_to(321))]

    assert len(tried) == len(set(tried))


def test_the_confirming_trial_does_not_move_the_bracket() -> None:
    samples = [
        Sample(trial=1, phase="grow", micro_batch=8, accumulation_steps=2, outcome=Outcome.OK),
        Sample(trial=2, phase="confirm", micro_batch=8, accumulation_steps=2, outcome=Outcome.OOM),
    ]

    assert bracket(samples).largest_ok == 8
    assert bracket(samples).smallest_failed is None


def test_a_size_that_failed_in_a_used_process_is_tried_in_a_fresh_one() -> None:
    certain = replace(goal(64), certify=True)

    # Used processes carry memory over: they fail from 30 on, fresh ones from 40 on.
    samples = simulate(
        certain, lambda trial: Outcome.OK if trial.micro_batch < (40 if trial.fresh else 30) else Outcome.OOM
    )

    assert [(s.micro_batch, s.fresh) for s in samples if s.micro_batch > 16] == [
        (32, False),
        (22, True),
        (32, True),
        (64, False),
        (64, True),
    ]
    assert bracket(samples).largest_ok == 32
    assert bracket(samples).smallest_failed == 64


def test_a_size_that_failed_in_a_fresh_process_is_not_tried_again() -> None:
    samples = simulate(replace(goal(2), certify=True), up_to(0))

    assert [(s.micro_batch, s.fresh) for s in samples] == [(2, True), (1, True)]


@pytest.mark.parametrize("outcome", [Outcome.KILLED, Outcome.TIMED_OUT])
def test_a_killed_or_hung_size_is_not_provoked_again(outcome: Outcome) -> None:
    certain = replace(goal(64), certify=True)

    samples = simulate(certain, lambda trial: outcome if trial.micro_batch > 5 else Outcome.OK)

    assert [s.micro_batch for s in samples] == [2, 4, 8, 6, 5]


def tally(aim: Goal, outcome: Callable[[Trial], Outcome]) -> tuple[list[int], int]:
    """The sizes that a search tries, in order, and how many of them ran out of memory."""
    samples = simulate(aim, outcome)
    return [s.micro_batch for s in samples], sum(s.outcome is Outcome.OOM for s in samples)


# 512 can be split into ... 43 47 52 57 64 74 86 103 128 171 256 512.
@pytest.mark.parametrize(
    ("start", "tried", "out_of_memory"),
    [
        (64, [64, 74, 32], 1),
        (74, [74, 64, 32], 1),
        (103, [103, 86, 64, 74, 32], 3),
        (52, [52, 57, 74, 64], 1),
        (512, [512, 256, 128, 64, 86, 74, 32], 5),
        (2, [2, 3, 5, 9, 17, 40, 512, 74, 52, 64], 2),
    ],
    ids=["right", "a little too large", "too large", "a little too small", "far too large", "far too small"],
)
def test_from_a_prior_ever_longer_strides_lead_to_the_limit(start: int, tried: list[int], out_of_memory: int) -> None:
    assert tally(replace(goal(512), start=start), up_to(70)) == (tried, out_of_memory)


def around(samples: list[Sample], aim: Goal) -> tuple[int | None, int | None]:
    """The largest candidate that ran or lies below what ran, and the smallest that failed or lies above what did."""
    seen = bracket(samples)
    largest, failed = seen.largest_ok or 0, seen.smallest_failed or 10**9
    return (
        max((size for size in aim.candidates if size <= largest), default=None),
        min((size for size in aim.candidates if size >= failed), default=None),
    )


@pytest.mark.parametrize("split", ["uneven", "even"])
@pytest.mark.parametrize("rank_batch", [1, 2, 3, 7, 9, 36])
def test_a_prior_changes_what_is_tried_and_not_what_is_found(rank_batch: int, split: str) -> None:
    aim = goal(rank_batch, split=split)
    for limit in range(rank_batch + 2):
        found = around(simulate(aim, up_to(limit)), aim)
        for start in range(1, rank_batch + 3):
            samples = simulate(replace(aim, start=start), up_to(limit))

            assert around(samples, aim) == found, (limit, start)


@pytest.mark.parametrize("certify", [False, True])
def test_a_prior_leaves_the_exact_limit_exact(certify: bool) -> None:
    for limit in (1, 2, 15, 16, 17, 30, 99):
        for start in (1, 2, 5, 14, 16, 20):
            seen = bracket(simulate(replace(goal(16, find_max=True), start=start, certify=certify), up_to(limit)))

            assert (seen.largest_ok, seen.smallest_failed) == (limit, limit + 1), start


@pytest.mark.parametrize("find_max", [False, True])
def test_a_prior_of_the_whole_target_is_tried_without_accumulation(find_max: bool) -> None:
    first = simulate(replace(goal(64, find_max=find_max), start=64), without(20, whole=64))[0]

    assert (first.micro_batch, first.accumulation_steps, first.ok) == (64, 1, True)


def test_a_size_for_the_models_that_does_not_run_ends_the_search() -> None:
    assert tally(replace(goal(64), start=64), without(20, whole=64)) == ([64, 32], 1)


def test_where_only_the_whole_target_ran_two_smaller_sizes_are_for_the_models() -> None:
    assert tally(replace(goal(64), start=64), up_to(100)) == ([64, 32, 16], 0)


def test_sizes_for_the_models_are_tried_only_where_two_have_not_run() -> None:
    samples = simulate(replace(goal(512), start=52), up_to(70))

    assert "fit" not in {s.phase for s in samples}


def test_from_a_prior_size_1_is_the_last_that_is_tried() -> None:
    # BatchNorm refuses it, which would end the search.
    assert tally(replace(goal(9, split="even"), start=2), up_to(0)) == ([3, 1, 9], 3)
    assert tally(replace(goal(64), start=10), up_to(1))[0] == [10, 8, 6, 2, 1]


@pytest.mark.parametrize("outcome", [Outcome.KILLED, Outcome.TIMED_OUT])
def test_a_workload_that_hangs_everywhere_does_not_hang_at_every_size(outcome: Outcome) -> None:
    tried = [s.micro_batch for s in simulate(replace(goal(512), start=171), lambda trial: outcome)]

    assert tried == [171, 2, 1]


def test_a_killed_prior_is_followed_by_the_smallest_size_and_then_bisected() -> None:
    samples = simulate(
        replace(goal(512), start=171), lambda trial: Outcome.KILLED if trial.micro_batch > 70 else Outcome.OK
    )

    assert [s.micro_batch for s in samples][:2] == [171, 2]
    assert around(samples, goal(512)) == (64, 74)


def test_a_search_that_was_cut_off_goes_on_from_the_same_prior() -> None:
    aim = replace(goal(512), start=103)
    whole = simulate(aim, up_to(70))

    for cut in range(len(whole)):
        trial = gallop_then_bisect(whole[:cut], aim)

        assert trial is not None
        assert trial.micro_batch == whole[cut].micro_batch

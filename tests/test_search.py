from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoaccum.records import Foreseen, Outcome, Prior, Sample
from autoaccum.search import FIRST_SIZE, Goal, bracket, certificate, fewest_trials
from autoaccum.solve import candidates

from .imagined import Imagined, search

DEVICE = Imagined(limit_bytes=0)


def up_to(limit: int, **more: Any) -> Imagined:
    """A device on which sizes up to `limit` fit with accumulation."""
    device = replace(DEVICE, **more)
    return replace(device, limit_bytes=device.needs(limit, steps=2) + device.each // 2)


def goal(device: Imagined, rank_batch: int, split: str = "uneven", **more: Any) -> Goal:
    return Goal(
        rank_batch=rank_batch,
        candidates=candidates(rank_batch, split),
        limit_bytes=device.limit_bytes,
        gradient_bytes=device.gradients,
        **more,
    )


def tried(samples: list[Sample]) -> list[int]:
    return [sample.micro_batch for sample in samples]


def largest(samples: list[Sample]) -> int:
    return max(sample.micro_batch for sample in samples if sample.ok)


# What is found


@pytest.mark.parametrize("loose", [0.0, 0.3])
@pytest.mark.parametrize("limit", [1, 2, 3, 63, 64, 65, 99, 511, 512, 5000])
@pytest.mark.parametrize("rank_batch", [1, 2, 7, 500, 512])
def test_the_largest_candidate_that_fits_is_found_with_one_crash_at_the_most(
    limit: int, rank_batch: int, loose: float
) -> None:
    device = up_to(limit, loose=loose)
    aim = goal(device, rank_batch)

    samples = search(device, aim)

    alone = device.fits(rank_batch, steps=1)
    best = rank_batch if alone else max(size for size in aim.candidates if size <= limit)
    assert largest(samples) == best
    assert sum(not sample.ok for sample in samples) <= 1


@pytest.mark.parametrize("limit", [30, 63, 99, 200])
def test_few_trials_suffice_where_memory_is_a_line(limit: int) -> None:
    assert len(search(up_to(limit), goal(up_to(limit), 512))) <= 4


def test_only_sizes_that_a_plan_can_use_are_tried() -> None:
    aim = goal(up_to(99), 500)

    assert set(tried(search(up_to(99), aim))) <= {FIRST_SIZE, *aim.candidates}


def test_a_target_that_fits_at_once_takes_two_trials() -> None:
    samples = search(up_to(5000), goal(up_to(5000), 512))

    assert [(s.micro_batch, s.accumulation_steps, s.ok) for s in samples] == [(2, 2, True), (512, 1, True)]


def test_with_an_even_split_only_divisors_are_tried() -> None:
    samples = search(up_to(100), goal(up_to(100), 512, split="even"))

    assert all(512 % size == 0 for size in tried(samples))
    assert largest(samples) == 64


def test_no_trial_is_made_twice() -> None:
    samples = search(up_to(321, loose=0.2), goal(up_to(321), 997))

    trials = [(sample.micro_batch, sample.accumulation_steps) for sample in samples]
    assert len(trials) == len(set(trials))


@pytest.mark.parametrize("limit", [1, 2, 3, 63, 64, 65, 99, 5000])
def test_find_max_gives_the_exact_limit_in_few_trials(limit: int) -> None:
    device = up_to(limit)

    samples = search(device, goal(device, 16, find_max=True))

    assert max(s.micro_batch for s in samples if s.ok and s.accumulation_steps > 1) == limit
    assert len(samples) <= 13  # doubling and bisecting would take up to 24


# What fits only without accumulation, and what does not fit at all


def test_when_two_does_not_fit_one_is_tried_and_then_the_whole_alone() -> None:
    device = replace(DEVICE, limit_bytes=0)

    samples = search(device, goal(device, 64))

    assert [(s.micro_batch, s.accumulation_steps) for s in samples] == [(2, 2), (1, 2), (64, 1)]


def test_a_target_that_fits_only_without_accumulation_is_found() -> None:
    device = replace(up_to(50), gradients=90)

    samples = search(device, goal(device, 60))

    assert device.fits(60, steps=1)
    assert not device.fits(60, steps=2)
    assert [s.ok for s in samples if s.accumulation_steps == 1] == [True]


def test_the_whole_target_is_not_tried_where_it_is_far_away() -> None:
    samples = search(up_to(20), goal(up_to(20), 512))

    assert all(sample.accumulation_steps > 1 for sample in samples)


# What hangs or dies


@pytest.mark.parametrize("outcome", [Outcome.KILLED, Outcome.TIMED_OUT])
def test_a_killed_or_hung_size_counts_as_too_large(outcome: Outcome) -> None:
    device = up_to(5000)

    samples = search(device, goal(device, 64), lambda trial: outcome if trial.micro_batch > 5 else Outcome.OK)

    assert bracket(samples).largest_ok == 5


@pytest.mark.parametrize("outcome", [Outcome.KILLED, Outcome.TIMED_OUT])
def test_a_workload_that_hangs_everywhere_does_not_hang_at_every_size(outcome: Outcome) -> None:
    device = up_to(5000)

    assert tried(search(device, goal(device, 512), lambda trial: outcome)) == [2, 1]


def test_the_confirming_trial_does_not_move_the_bracket() -> None:
    samples = [
        Sample(trial=1, phase="jump", micro_batch=8, accumulation_steps=2, outcome=Outcome.OK),
        Sample(trial=2, phase="confirm", micro_batch=8, accumulation_steps=2, outcome=Outcome.OOM),
    ]

    assert bracket(samples).largest_ok == 8
    assert bracket(samples).smallest_failed is None


def test_where_processes_carry_memory_over_each_trial_has_its_own() -> None:
    device = up_to(40)

    assert all(sample.fresh for sample in search(device, goal(device, 64, fresh=True)))


# From a prior


def foreseen(device: Imagined, sizes: tuple[int, ...], wrong: float = 1.0) -> Prior:
    """What a rehearsal says of a device, `wrong` times too much."""
    return Prior(
        start=max((size for size in sizes if device.fits(size, 2)), default=None),
        words="made up",
        margin=0.06,
        overhead_bytes=device.overhead,
        sizes=tuple(
            Foreseen(
                micro_batch=size,
                resident_bytes=device.resident,
                computing_bytes=round(device.resident + device.each * size * wrong),
                held_bytes=round(device.resident + device.each * size * wrong),
                step_bytes=device.resident + device.step,
                least_bytes=round(device.resident + device.each * size * wrong),
            )
            for size in sizes
        ),
    )


@pytest.mark.parametrize("wrong", [0.85, 0.95, 1.0, 1.05, 1.2])
@pytest.mark.parametrize("limit", [5, 40, 70, 300])
def test_a_prior_changes_what_is_tried_and_not_what_is_found(limit: int, wrong: float) -> None:
    device = up_to(limit)
    aim = goal(device, 500)

    samples = search(device, replace(aim, prior=foreseen(device, aim.candidates[1:], wrong)))

    assert largest(samples) == max(size for size in aim.candidates if size <= limit)


@pytest.mark.parametrize("limit", [40, 70, 300])
def test_a_right_prior_takes_two_trials(limit: int) -> None:
    device = up_to(limit)
    aim = goal(device, 500)

    samples = search(device, replace(aim, prior=foreseen(device, aim.candidates[1:])))

    assert len(samples) <= 2
    assert all(sample.ok for sample in samples)


def test_a_prior_of_the_whole_target_is_tried_without_accumulation() -> None:
    device = up_to(5000)
    aim = goal(device, 64)

    samples = search(device, replace(aim, prior=foreseen(device, aim.candidates[1:])))

    assert [(s.micro_batch, s.accumulation_steps) for s in samples] == [(64, 1)]


def test_a_prior_that_knows_no_more_than_a_size_is_where_the_search_starts() -> None:
    device = up_to(70)

    samples = search(device, goal(device, 512, prior=Prior(start=64, words="made up")))

    assert tried(samples)[0] == 64
    assert largest(samples) == 64


def test_a_search_that_was_cut_off_goes_on_as_it_would_have() -> None:
    device = up_to(70, loose=0.2)
    aim = goal(device, 512)
    whole = search(device, aim)

    for cut, sample in enumerate(whole):
        trial = fewest_trials(whole[:cut], aim)

        assert trial is not None
        assert trial.micro_batch == sample.micro_batch


# The certificate


def certified(device: Imagined, rank_batch: int, **more: Any) -> Any:
    aim = goal(device, rank_batch, **more)
    return certificate(search(device, aim), aim)


def test_a_target_that_fits_at_once_needs_no_larger_size() -> None:
    found = certified(up_to(5000), 512)

    assert (found.micro_batch, found.next_micro_batch, found.basis) == (512, None, "target")


def test_a_next_size_that_is_beyond_the_limit_is_certified_by_what_it_needs_at_the_least() -> None:
    device = up_to(70)

    found = certified(device, 512)

    assert (found.micro_batch, found.next_micro_batch, found.basis) == (64, 74, "predicted")
    assert device.limit_bytes < found.needed_bytes <= device.needs(74, steps=2) + 0.02 * device.each * 74
    assert "64 ran" in found.words


def test_a_next_size_that_was_run_is_certified_by_how_it_ended() -> None:
    # 103 would fit by its live tensors, and the allocator cannot place them.
    device = up_to(100, slack=lambda size: 0.05 if size > 100 else 0.0, each=70)
    device = replace(device, limit_bytes=device.overhead + device.live(103, 2) + round(0.03 * 70 * 103))

    found = certified(device, 512)

    assert (found.micro_batch, found.next_micro_batch, found.basis) == (86, 103, "oom")
    assert "ran out of memory" in found.words


def test_where_nothing_ran_nothing_is_certified() -> None:
    assert certified(replace(DEVICE, limit_bytes=0), 64) is None

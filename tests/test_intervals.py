"""How well a time is known, and when one of two is called the faster."""

from __future__ import annotations

import random

import pytest

from autoaccum.tuning.intervals import WORTH, compare, estimate


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (20, 5)])
def test_an_interval_leaves_out_as_many_values_as_its_level_allows(count: int, left_out: int) -> None:
    found = estimate([float(value) for value in range(count)])

    assert (found.low, found.high) == (left_out, count - 1 - left_out)
    assert found.values == count


def test_the_interval_holds_the_true_median_in_95_of_100_cases_and_not_in_all() -> None:
    source = random.Random(0)
    draws = [estimate([source.lognormvariate(0.0, 0.5) for _ in range(15)]) for _ in range(4000)]
    held = sum(each.low <= 1.0 <= each.high for each in draws) / len(draws)

    assert 0.95 <= held <= 0.98


def test_a_few_slow_windows_do_not_move_the_estimate() -> None:
    calm = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0, 1.0]

    found = estimate([*calm, 5.0, 9.0])

    assert found.median == pytest.approx(1.0)
    assert found.width < 0.04


def test_a_challenger_is_faster_where_the_interval_of_the_ratio_leaves_1_out() -> None:
    slow, fast = [1.0, 1.02, 1.01, 1.0, 1.01, 1.0, 1.02], [0.9, 0.91, 0.92, 0.9, 0.91, 0.92, 0.9]

    assert compare(slow, fast, 2).faster
    assert compare(fast, slow, 2).slower


def test_a_few_windows_settle_nothing_unless_they_are_far_apart() -> None:
    near, far = compare([1.0] * 6, [0.96] * 6, 2), compare([1.0] * 4, [0.5] * 4, 2)

    assert not near.faster
    assert not near.settled
    assert far.faster


def test_three_windows_settle_nothing() -> None:
    assert not compare([1.0] * 3, [0.5] * 3, 2).settled


def test_a_challenger_within_the_noise_is_neither() -> None:
    found = compare([1.0, 1.1, 0.9, 1.0], [0.95, 1.05, 0.85, 0.95], 2)

    assert not found.faster
    assert not found.slower
    assert not found.settled


def test_a_gain_that_is_certain_and_tiny_settles_nothing_in_its_favour() -> None:
    found = compare([1.0] * 8, [1.0 - WORTH * 0.9] * 8, 3)

    assert not found.faster
    assert found.settled


def test_equal_sides_are_called_different_in_few_cases_of_a_hundred() -> None:
    source = random.Random(1)
    wrong = 0
    for _ in range(2000):
        sides = [[source.gauss(1.0, 0.05) for _ in range(12)] for _ in range(2)]
        found = compare(sides[0], sides[1], 6)
        wrong += found.faster or found.slower

    assert wrong / 2000 < 0.01


def test_a_gain_of_four_percent_is_seen_through_noise_of_six() -> None:
    source = random.Random(2)
    seen = 0
    for _ in range(200):
        sides = [[source.gauss(center, 0.06) for _ in range(80)] for center in (1.0, 0.96)]
        seen += compare(sides[0], sides[1], 6).faster

    assert seen / 200 > 0.8

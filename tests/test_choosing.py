"""The largest size that fits a card, found in few runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoaccum.rehearsal.choosing import largest_that_fits
from autoaccum.solve import candidates

MIB = 1 << 20


class Curve:
    """Memory against the size, and how often it was asked."""

    def __init__(self, needs: Callable[[int], int]) -> None:
        self.seen: dict[int, int] = {}
        self._needs = needs

    def __call__(self, size: int) -> int:
        assert size not in self.seen, "a size is run once"
        self.seen[size] = self._needs(size)
        return self.seen[size]


def line(size: int) -> int:
    return (500 + 37 * size) * MIB


def optimizer_then_line(size: int) -> int:
    return max(3000, 500 + 37 * size) * MIB


def stairs(size: int) -> int:
    return (500 + 37 * size // 4 * 4 + (size % 3)) * MIB


CURVES = [line, optimizer_then_line, stairs]


@pytest.mark.parametrize("needs", CURVES)
@pytest.mark.parametrize("limit_mib", [600, 3100, 8000, 19_000, 500_000])
@pytest.mark.parametrize("target", [1, 7, 97, 512, 4096])
def test_it_is_the_one_that_trying_all_would_give(needs: Callable[[int], int], limit_mib: int, target: int) -> None:
    sizes, curve = candidates(target, "auto"), Curve(needs)

    found = largest_that_fits(sizes, curve, limit_mib * MIB, curve.seen)

    assert found == max((size for size in sizes if needs(size) <= limit_mib * MIB), default=None)


@pytest.mark.parametrize("target", [97, 512, 4096])
def test_along_a_line_few_sizes_are_run(target: int) -> None:
    sizes, curve = candidates(target, "auto"), Curve(line)

    largest_that_fits(sizes, curve, 9000 * MIB, curve.seen)

    assert len(curve.seen) <= 6


def test_the_next_card_needs_only_its_own_sizes() -> None:
    sizes, curve = candidates(512, "auto"), Curve(line)
    largest_that_fits(sizes, curve, 9000 * MIB, curve.seen)
    before = len(curve.seen)

    largest_that_fits(sizes, curve, 6000 * MIB, curve.seen)

    assert len(curve.seen) - before <= 3


def test_the_answer_and_the_next_larger_size_were_run() -> None:
    sizes, curve = candidates(512, "auto"), Curve(line)

    found = largest_that_fits(sizes, curve, 9000 * MIB, curve.seen)

    assert found in curve.seen
    assert sizes[sizes.index(found) + 1] in curve.seen


def test_no_batch_far_beyond_what_was_seen_is_made() -> None:
    sizes, curve = candidates(1 << 20, "auto"), Curve(lambda size: 500 * MIB + size)

    largest_that_fits(sizes, curve, 501 * MIB, curve.seen)

    ran = list(curve.seen)
    assert all(size <= 8 * max(ran[:index], default=8) for index, size in enumerate(ran))


def test_where_the_smallest_does_not_fit_there_is_none() -> None:
    curve = Curve(line)

    assert largest_that_fits([1, 2, 4], curve, 100 * MIB, curve.seen) is None

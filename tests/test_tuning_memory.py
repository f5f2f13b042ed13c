"""Which candidates fit, by what ran, what did not, and a model for each set of knobs."""

from __future__ import annotations

import pytest

from autoaccum.records import PLAIN, Knobs, MemoryModel
from autoaccum.tuning.memory import MemoryBook
from autoaccum.tuning.space import Candidate

MODEL = MemoryModel(fixed_bytes=100, bytes_per_sample=10, overhead_bytes=50, floor_bytes=0, worst_miss_bytes=0)
SAVING = Knobs(checkpoint="all")


def of(size: int, knobs: Knobs = PLAIN) -> Candidate:
    return Candidate(micro_batch=size, knobs=knobs)


@pytest.fixture
def book() -> MemoryBook:
    """550 bytes: 40 samples as the user wrote it."""
    return MemoryBook(ground=PLAIN, fits=lambda size: size <= 40, model=MODEL, limit_bytes=550)


def test_without_knobs_the_search_decides(book: MemoryBook) -> None:
    assert book.fits(of(40))
    assert not book.fits(of(41))


@pytest.mark.parametrize("knobs", [Knobs(tf32=True), Knobs(optimizer="fused")])
def test_knobs_that_hold_no_memory_need_no_model(book: MemoryBook, knobs: Knobs) -> None:
    assert book.known(knobs)
    assert not book.fits(of(41, knobs))


def test_before_anything_ran_knobs_are_taken_to_save_nothing(book: MemoryBook) -> None:
    assert not book.known(SAVING)
    assert book.fits(of(40, SAVING))
    assert not book.fits(of(80, SAVING))


def test_one_small_trial_gives_knobs_a_model_of_their_own(book: MemoryBook) -> None:
    book.ran(of(20, SAVING), 50 + 100 + 20 * 4)

    assert book.predicted(of(100, SAVING)) == 50 + 100 + 400
    assert book.fits(of(100, SAVING))
    assert not book.fits(of(101, SAVING))
    assert not book.fits(of(101))


def test_more_sizes_correct_the_model(book: MemoryBook) -> None:
    book.ran(of(20, SAVING), 350)
    book.ran(of(40, SAVING), 410)

    assert book.predicted(of(100, SAVING)) == 590


def test_what_did_not_fit_stands_above_every_model(book: MemoryBook) -> None:
    book.ran(of(20, SAVING), 160)
    book.did_not_fit(of(60, SAVING))

    assert not book.fits(of(60, SAVING))
    assert not book.fits(of(80, SAVING))
    assert book.fits(of(59, SAVING))
    assert book.excess(of(60, SAVING)) > 0


def test_what_ran_fits_and_so_does_what_is_smaller(book: MemoryBook) -> None:
    book.ran(of(64), 549)

    assert book.fits(of(64))
    assert book.fits(of(50))


def test_a_knob_may_need_more_than_the_training_without_it(book: MemoryBook) -> None:
    hungry = Knobs(optimizer="foreach")
    book.ran(of(20, hungry), 50 + 100 + 20 * 15)

    assert not book.fits(of(40, hungry))
    assert book.fits(of(26, hungry))

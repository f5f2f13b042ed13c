"""Which candidate comes next, from what was measured; a pure function."""

from __future__ import annotations

from autoaccum.records import PLAIN, Knobs
from autoaccum.tuning.proposals import Fits, Seen, instead, propose
from autoaccum.tuning.results import Fate
from autoaccum.tuning.space import Candidate, Space
from tests.tuning import space_of

FUSED: dict[str, tuple[object, ...]] = {"optimizer": (None, "fused")}


def of(size: int, **knobs: object) -> Candidate:
    return Candidate(micro_batch=size, knobs=Knobs(**knobs))  # type: ignore[arg-type]


def seen(candidate: Candidate, value: float | None = 1.0, fate: Fate | None = Fate.OK) -> Seen:
    return Seen(candidate=candidate, value=value, fate=fate)


def all_fit(candidate: Candidate) -> bool:
    return True


def up_to(size: int) -> Fits:
    return lambda candidate: candidate.micro_batch <= size


def climb(space: Space, values: dict[int, float]) -> list[int]:
    """The sizes that are proposed, one after the other, if their values are these."""
    done: list[Seen] = []
    while (next_ := propose(done, space, all_fit)) is not None:
        done.append(seen(next_, values[next_.micro_batch]))
    return [each.candidate.micro_batch for each in done]


def test_the_largest_size_that_fits_comes_first() -> None:
    assert propose([], space_of(64), up_to(20)) == of(16)


def test_smaller_sizes_follow_until_one_is_clearly_slower() -> None:
    sizes = climb(space_of(1024), {2**n: 1.0 + 0.2 * (10 - n) for n in range(11)})

    assert sizes[:2] == [1024, 256]
    assert min(sizes) == 256


def test_the_sizes_around_the_best_are_looked_at() -> None:
    values = {2**n: 1.0 + 0.05 * abs(n - 5) for n in range(11)}

    sizes = climb(space_of(1024), values)

    assert sizes[:3] == [1024, 256, 64]
    assert 32 in sizes[:7]


def test_each_knob_is_tried_once_at_the_best_size() -> None:
    done = [seen(of(64), 1.0), seen(of(16), 2.0)]

    first = propose(done, space_of(64, FUSED), all_fit)

    assert first == of(64, optimizer="fused")
    after = propose([*done, seen(first, 1.5)], space_of(64, FUSED), all_fit)
    assert after is None or after.knobs == PLAIN


def test_a_knob_that_helped_is_kept_while_the_next_is_tried() -> None:
    space = space_of(64, {"precision": (None, "bf16"), **FUSED})
    done = [seen(of(64), 1.0), seen(of(16), 2.0), seen(of(64, precision="bf16"), 0.7)]

    assert propose(done, space, all_fit) == of(64, precision="bf16", optimizer="fused")


def test_a_knob_that_failed_is_not_tried_with_others() -> None:
    space = space_of(64, {"compile": (False, True), **FUSED})
    done = [
        seen(of(64), 1.0),
        seen(of(16), 2.0),
        seen(of(64, compile=True), None, Fate.FAILED),
        seen(of(64, optimizer="fused"), 0.9),
    ]

    next_ = propose(done, space, all_fit)

    assert next_ is None or not next_.knobs.compile


def test_checkpointing_is_not_tried_where_there_is_room() -> None:
    space = space_of(64, {"checkpoint": (None, "half", "all")})
    whole = [seen(of(64), 1.0), seen(of(16), 2.0)]
    small_is_best = [seen(of(16), 1.5), seen(of(4), 1.0), seen(of(1), 2.0), seen(of(8), 1.2), seen(of(2), 1.2)]

    assert propose(whole, space, all_fit) in (None, of(32))
    assert propose(small_is_best, space, up_to(16)) is None


def test_checkpointing_is_tried_at_the_limit_and_then_with_the_room_that_it_makes() -> None:
    space = space_of(64, {"checkpoint": (None, "half", "all")})

    def fits(candidate: Candidate) -> bool:
        return candidate.micro_batch <= (64 if candidate.knobs.checkpoint == "all" else 16)

    done = [seen(of(16), 1.0), seen(of(4), 2.0)]
    tried = []
    for _ in range(5):
        next_ = propose(done, space, fits)
        if next_ is None:
            break
        tried.append(next_)
        done.append(seen(next_, 1.3))

    assert tried[:3] == [of(8), of(16, checkpoint="half"), of(16, checkpoint="all")]
    assert of(64, checkpoint="all") in tried


def test_a_knob_that_helped_at_one_size_is_turned_at_the_best_one() -> None:
    space = space_of(64, FUSED)
    done = [seen(of(64), 1.3), seen(of(64, optimizer="fused"), 1.2), seen(of(16), 1.0), seen(of(4), 2.0)]

    assert propose(done, space, all_fit) == of(16, optimizer="fused")


def test_of_knobs_that_hold_the_same_memory_only_the_fastest_go_on_to_larger_sizes() -> None:
    space = space_of(64, {"precision": (None, "bf16"), **FUSED})

    def fits(candidate: Candidate) -> bool:
        return candidate.micro_batch <= (64 if candidate.knobs.precision == "bf16" else 16)

    done = [
        seen(of(16), 1.0), seen(of(4), 2.0), seen(of(16, precision="bf16"), 0.9),
        seen(of(16, precision="bf16", optimizer="fused"), 0.8), seen(of(64, precision="bf16", optimizer="fused"), 0.7),
    ]  # fmt: skip

    assert propose(done, space, fits) == of(32, precision="bf16", optimizer="fused")


def test_the_sizes_beside_the_best_come_last() -> None:
    space = space_of(60)
    done = [seen(of(size), 2.0 if size != 10 else 1.0) for size in (60, 30, 15, 12, 10, 5, 4, 3, 2, 1)]

    assert propose(done, space, all_fit) == of(6)


def test_no_valley_is_looked_for_between_sizes_that_are_clearly_slower() -> None:
    space = space_of(64)
    done = [seen(of(64), 1.0), seen(of(32), 1.0), seen(of(16), 2.0), seen(of(1), 9.0)]

    assert propose(done, space, all_fit) is None


def test_what_runs_elsewhere_is_not_proposed_again() -> None:
    done = [seen(of(64), None, None)]

    assert propose(done, space_of(64), all_fit) == of(16)


def test_in_place_of_what_was_measured_comes_what_is_most_like_it() -> None:
    space = space_of(64, FUSED)
    done = [seen(of(16)), seen(of(8))]

    assert instead(of(16), done, space, all_fit) == of(32)
    assert instead(of(32), done, space, all_fit) == of(32)
    assert instead(of(64), done, space, up_to(16)) == of(4)


def test_when_everything_was_measured_nothing_is_left() -> None:
    space = space_of(4, FUSED)
    done = [seen(of(size, optimizer=how)) for size in (1, 2, 4) for how in (None, "fused")]

    assert instead(of(4), done, space, all_fit) is None
    assert propose(done, space, all_fit) is None


def test_two_sizes_close_to_each_other_are_a_ladder_that_ends() -> None:
    space = space_of(3)

    assert climb(space, {3: 1.0, 1: 1.0})[0] == 3


def test_a_valley_between_two_steps_of_the_ladder_is_found() -> None:
    values = {1: 1.5, 2: 0.9, 3: 0.8, 4: 1.4, 6: 1.38, 8: 1.36, 12: 1.35, 16: 1.33, 24: 1.3, 48: 1.25}

    sizes = climb(space_of(48), values)

    assert 3 in sizes

"""What an update cannot do without, read off made-up histories of the allocator."""

from __future__ import annotations

from typing import Any

import pytest

from autoaccum.device.history import needs

WEIGHTS = {
    "address": 1000,
    "total_size": 100,
    "blocks": [
        {"address": 1000, "size": 60, "requested_size": 50, "state": "active_allocated"},
        {"address": 1060, "size": 40, "requested_size": 0, "state": "inactive"},
    ],
}


def event(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size}


def freed(address: int, size: int) -> list[dict[str, Any]]:
    return [event("free_requested", address, size), event("free_completed", address, size)]


ACTIVATIONS = [
    event("segment_alloc", 2000, 200),
    event("alloc", 2000, 80),
    event("alloc", 2080, 20),
    *freed(2080, 20),
    *freed(2000, 80),
]


def test_what_is_live_at_the_most_is_firm_and_its_segments_are_held() -> None:
    found = needs([WEIGHTS], ACTIVATIONS, step_at=9)

    assert found is not None
    # The 20 bytes are scratch: given back before anything else was asked for.
    assert (found.base_bytes, found.firm_bytes, found.scratch_bytes) == (50, 130, 20)
    assert found.held_bytes == 300
    assert found.step_bytes == 0


def test_the_optimizers_step_counts_apart() -> None:
    step = [event("segment_alloc", 3000, 500), event("alloc", 3000, 400), event("alloc", 3400, 10)]

    found = needs([WEIGHTS], [*ACTIVATIONS, *step], step_at=2)

    assert found is not None
    assert found.firm_bytes == 130
    assert found.step_bytes == 600  # the segment that holds nothing but what was cached is not counted


def test_a_segment_that_holds_scratch_alone_is_not_held() -> None:
    scratch = [event("segment_alloc", 2000, 900), event("alloc", 2000, 900), *freed(2000, 900)]

    found = needs([WEIGHTS], scratch, step_at=9)

    assert found is not None
    assert (found.firm_bytes, found.scratch_bytes, found.held_bytes) == (50, 900, 100)


def test_segments_that_grow_tell_nothing() -> None:
    assert needs([{**WEIGHTS, "is_expandable": True}], ACTIVATIONS, step_at=9) is None
    assert needs([WEIGHTS], [event("segment_map", 2000, 200)], step_at=9) is None


def test_a_block_in_no_segment_is_an_error_that_the_recorder_expects() -> None:
    with pytest.raises(LookupError):
        needs([], [event("alloc", 10, 20)], step_at=9)

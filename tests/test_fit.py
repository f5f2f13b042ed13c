from __future__ import annotations

from typing import Any

import pytest

from autoaccum.fit import fit_memory, fit_time
from autoaccum.records import Outcome, Sample
from autoaccum.units import MIB


def sample(size: int, reserved: int = 0, **more: Any) -> Sample:
    values: dict[str, Any] = {
        "trial": 1,
        "phase": "grow",
        "micro_batch": size,
        "accumulation_steps": 2,
        "outcome": Outcome.OK,
        "peak_reserved_bytes": reserved,
        "device_used_bytes": reserved + 100 * MIB,
    }
    return Sample(**{**values, **more})


def test_a_line_is_found_exactly() -> None:
    model = fit_memory([sample(m, 50 * MIB + 3 * MIB * m) for m in (2, 4, 8, 16)])

    assert model is not None
    assert (model.fixed_bytes, model.bytes_per_sample) == (50 * MIB, 3 * MIB)
    assert (model.overhead_bytes, model.worst_miss_bytes) == (100 * MIB, 0)
    assert model.device_bytes(100) == (100 + 50 + 300) * MIB


def test_a_floor_under_the_line_is_found() -> None:
    # The optimizer's step holds 200 MiB whatever the size; activations pass it at 32.
    model = fit_memory([sample(m, max(200 * MIB, 40 * MIB + 5 * MIB * m)) for m in (2, 4, 8, 16, 32, 64, 128, 256)])

    assert model is not None
    assert model.bytes_per_sample == 5 * MIB
    assert model.device_bytes(2) == 300 * MIB
    assert model.device_bytes(1000) == (100 + 40 + 5000) * MIB


def test_samples_that_do_not_compare_are_left_out() -> None:
    good = [sample(m, 10 * MIB * m) for m in (2, 4)]
    bad = [
        sample(1, 999 * MIB),
        sample(8, 999 * MIB, accumulation_steps=1),
        sample(8, 999 * MIB, phase="confirm"),
        sample(8, 999 * MIB, outcome=Outcome.OOM),
    ]

    assert fit_memory(good + bad) == fit_memory(good)


def test_one_size_is_no_model() -> None:
    assert fit_memory([sample(2, MIB)]) is None
    assert fit_memory([]) is None


def test_the_worst_miss_is_told() -> None:
    model = fit_memory([sample(m, MIB * (10 + m) + (MIB if m == 8 else 0)) for m in (2, 4, 8, 16)])

    assert model is not None
    assert 0.3 * MIB < model.worst_miss_bytes < MIB


def test_memory_never_falls_with_size() -> None:
    model = fit_memory([sample(2, 11 * MIB), sample(4, 10 * MIB)])

    assert model is not None
    assert model.bytes_per_sample == 0


def timed(size: int, seconds: float) -> Sample:
    return sample(size, step_seconds=2 * seconds + 0.5, optimizer_seconds=0.5)


def test_the_time_of_an_update_is_found() -> None:
    model = fit_time([timed(m, 0.01 + 0.002 * m) for m in (2, 4, 8, 16)])

    assert model is not None
    assert model.update_seconds([8, 8, 7]) == pytest.approx(3 * 0.01 + 23 * 0.002 + 0.5)


def test_one_timed_size_gives_time_in_proportion() -> None:
    model = fit_time([timed(4, 0.1)])

    assert model is not None
    assert model.update_seconds([4, 4]) == pytest.approx(0.7)


def test_noise_never_makes_more_steps_look_free_of_cost() -> None:
    model = fit_time([timed(2, 0.01), timed(4, 0.1)])

    assert model is not None
    assert model.fixed_seconds >= 0
    assert model.update_seconds([4, 4]) <= model.update_seconds([2] * 4) + 1e-12


def test_nothing_timed_is_no_model() -> None:
    assert fit_time([sample(2, outcome=Outcome.OOM)]) is None

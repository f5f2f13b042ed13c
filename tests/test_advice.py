from __future__ import annotations

from dataclasses import replace

from autoaccum.advice import at_least, crowded, many_steps, no_plan, shared_by_ranks
from autoaccum.errors import NothingFits, WorkloadError
from autoaccum.plans import Plan
from autoaccum.records import Budget, DeviceInfo, ModelInfo, Outcome, Sample
from autoaccum.units import GIB, MIB

DEVICE = DeviceInfo(kind="cuda", name="x", uuid=None, total_bytes=8 * GIB, free_bytes=8 * GIB, overhead_bytes=256 * MIB)
BUDGET = Budget(limit_bytes=GIB, reserve_bytes=0, source="user")


def failed(outcome: Outcome, message: str = "", used: int | None = None, size: int = 1) -> Sample:
    return Sample(
        trial=1,
        phase="grow",
        micro_batch=size,
        accumulation_steps=2,
        outcome=outcome,
        message=message,
        device_used_bytes=used,
    )


def plan(steps: int, rank_batch: int) -> Plan:
    return Plan(
        micro_batch=rank_batch // steps,
        accumulation_steps=steps,
        micro_batches=(rank_batch // steps,) * steps,
        world_size=1,
        effective_batch=rank_batch,
    )


def test_what_a_size_needs_is_what_it_held_and_what_it_asked_for() -> None:
    sample = failed(Outcome.OOM, "CUDA out of memory. Tried to allocate 512.00 MiB.", used=900 * MIB)

    assert at_least(sample, DEVICE, None) == 1412 * MIB


def test_weights_and_the_gradients_of_what_is_trained_are_needed_in_any_case() -> None:
    frozen = ModelInfo(name="LoRA", parameters=1, parameter_bytes=2 * GIB, gradient_bytes=MIB)

    assert at_least(failed(Outcome.OOM), DEVICE, frozen) == 256 * MIB + 2 * GIB + MIB


def test_nothing_fits_says_what_is_needed_and_what_there_is() -> None:
    error = no_plan([failed(Outcome.OOM, "tried to allocate 1073741824 bytes", used=900 * MIB)], DEVICE, BUDGET, None)

    assert isinstance(error, NothingFits)
    assert "needs more than 1.88 GiB and the budget is 1.00 GiB" in str(error)


def test_where_less_was_needed_than_the_budget_the_cause_is_quoted() -> None:
    error = no_plan([failed(Outcome.OOM, "could not create a primitive", used=500 * MIB)], DEVICE, BUDGET, None)

    assert "could not create a primitive" in str(error)
    assert "needs more" not in str(error)


def test_a_hang_and_a_crash_are_the_workloads() -> None:
    assert isinstance(no_plan([failed(Outcome.TIMED_OUT, "no answer within 5 s")], DEVICE, BUDGET, None), WorkloadError)
    assert isinstance(no_plan([failed(Outcome.KILLED, "crashed")], DEVICE, BUDGET, None), WorkloadError)


def test_an_even_plan_of_very_many_steps_is_warned_of() -> None:
    assert "1021" in many_steps(plan(1021, 1021), largest_ok=128)[0]
    assert many_steps(plan(8, 512), largest_ok=100) == []
    assert many_steps(plan(2, 64), largest_ok=64) == []


def test_several_ranks_are_warned_of_their_buckets() -> None:
    assert "gradient_as_bucket_view" in shared_by_ranks(2)[0]
    assert shared_by_ranks(1) == []


def test_a_plan_that_fits_only_by_giving_cached_memory_back_is_said_to_cost_time() -> None:
    ran = replace(failed(Outcome.OK, size=64), alloc_retries=4)

    (warning,) = crowded(ran)

    assert warning.startswith("micro-batch 64 fits only because")
    assert crowded(replace(ran, alloc_retries=2)) == []
    assert crowded(replace(ran, alloc_retries=None)) == []

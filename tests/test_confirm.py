"""Which plans are tried again, on a made-up lab; tests/test_cli_probe.py has the real one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from autoaccum.confirm import confirm, first_that_runs, training_limit
from autoaccum.errors import WorkloadError
from autoaccum.fit import TimeModel
from autoaccum.lab import Lab
from autoaccum.plans import Plan
from autoaccum.records import Budget, DeviceInfo, Knobs, Outcome, Sample, Trial
from autoaccum.solve import Known, solve

DEVICE = DeviceInfo(kind="cuda", name="x", uuid=None, total_bytes=1, free_bytes=1)
BUDGET = Budget(limit_bytes=1000, reserve_bytes=0, source="user")


class MadeUp:
    """Trials of up to `limit` samples run."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tried: list[int] = []
        self.trials: list[Trial] = []
        self.warnings: list[str] = []

    def warn(self, *warnings: str) -> None:
        self.warnings.extend(warnings)

    def run(self, trial: Trial) -> Sample:
        self.tried.append(trial.micro_batch)
        self.trials.append(trial)
        ok = trial.micro_batch <= self.limit
        return Sample(
            trial=1,
            phase=trial.phase,
            micro_batch=trial.micro_batch,
            accumulation_steps=trial.accumulation_steps,
            outcome=Outcome.OK if ok else Outcome.OOM,
            device_used_bytes=trial.micro_batch,
            step_seconds=2.0,
            samples_per_second=sum(trial.micro_batches) / 2.0,
        )


def plans(count: int) -> list[Plan]:
    """Plans of sizes count, count - 1, ... 1."""
    return [
        Plan(micro_batch=n, accumulation_steps=2, micro_batches=(n, n), world_size=1, effective_batch=2 * n)
        for n in range(count, 0, -1)
    ]


def run(limit: int, count: int = 30, repeatable: bool = True) -> tuple[MadeUp, list[Plan]]:
    lab = MadeUp(limit)
    return lab, confirm(plans(count), cast(Lab, lab), replace(DEVICE, repeatable=repeatable), BUDGET)


def test_a_plan_that_runs_at_once_is_the_answer_with_what_was_measured() -> None:
    lab, confirmed = run(limit=30)

    assert lab.tried == [30]
    assert (confirmed[0].micro_batch, confirmed[0].measured, confirmed[0].peak_bytes) == (30, True, 30)
    assert confirmed[0].headroom_bytes == 970
    assert confirmed[0].samples_per_second == pytest.approx(60 / 2)
    assert [plan.micro_batch for plan in confirmed[1:]] == list(range(29, 0, -1))
    assert lab.warnings == []


@pytest.mark.parametrize("target", [2, 7, 8, 60, 97, 500, 512])
@pytest.mark.parametrize("split", ["auto", "even", "uneven"])
def test_the_best_ranked_plan_that_runs_is_found_whatever_the_limit(target: int, split: str) -> None:
    known = Known(
        samples=(),
        memory=None,
        time=TimeModel(fixed_seconds=0.05, seconds_per_sample=0.01, optimizer_seconds=0.1),
        budget=BUDGET,
    )
    ranked = solve(target, 1, split, lambda size: True, known)
    for limit in {plan.micro_batch for plan in ranked}:
        lab = MadeUp(limit)

        confirmed = confirm(ranked, cast(Lab, lab), DEVICE, BUDGET)

        best = next(plan for plan in ranked if plan.micro_batch <= limit)
        assert confirmed[0].micro_batches == best.micro_batches
        refused = min((size for size in lab.tried if size > limit), default=target + 1)
        assert all(plan.micro_batch < refused for plan in confirmed)
        assert all(plan.micro_batch != best.micro_batch for plan in confirmed[1:])
        assert len(lab.tried) == len(set(lab.tried)) <= 14


def test_when_none_runs_there_is_no_plan_and_one_warning() -> None:
    lab, confirmed = run(limit=0)

    assert confirmed == []
    assert lab.tried[-1] == 1
    assert len(lab.warnings) == 1


def test_every_confirming_trial_has_a_process_of_its_own() -> None:
    lab, _ = run(limit=7)

    assert all(trial.fresh and trial.phase == "confirm" for trial in lab.trials)


def test_where_runs_differ_a_margin_is_kept_and_more_updates_are_run() -> None:
    steady, _ = run(limit=30)
    noisy, _ = run(limit=30, repeatable=False)

    shaky = replace(DEVICE, repeatable=False)
    assert (training_limit(DEVICE, BUDGET), steady.trials[0].updates) == (1000, 3)
    assert (training_limit(shaky, BUDGET), noisy.trials[0].updates) == (950, 6)


@pytest.mark.parametrize(
    ("repeatable", "peak", "warned"), [(False, 860, True), (False, 840, False), (True, 999, False)]
)
def test_a_tight_plan_is_warned_of_where_runs_differ(repeatable: bool, peak: int, warned: bool) -> None:
    lab, _ = run(limit=peak, count=peak, repeatable=repeatable)

    assert [("for certain" in warning) for warning in lab.warnings] == [True] * warned


def test_no_plans_are_no_plan() -> None:
    assert run(limit=5, count=0)[1] == []


def uneven(samples_per_second: float | None = None, **more: Any) -> Plan:
    sizes = {"micro_batch": 5, "accumulation_steps": 3, "micro_batches": (5, 5, 4)}
    return Plan(**sizes, world_size=1, effective_batch=14, samples_per_second=samples_per_second, **more)  # type: ignore[arg-type]


def test_an_uneven_plan_is_confirmed_with_both_its_sizes_and_then_whole() -> None:
    lab = MadeUp(100)

    confirm([uneven()], cast(Lab, lab), DEVICE, BUDGET)

    (trial,) = lab.trials
    assert (trial.sizes, trial.updates) == ((5, 4), 3)
    assert (trial.micro_batches, trial.whole_updates) == ((5, 5, 4), 1)


@pytest.mark.parametrize(("samples_per_second", "whole"), [(1.0, 1), (14.0, 2), (1000.0, 5)])
def test_short_updates_are_timed_more_than_once(samples_per_second: float, whole: int) -> None:
    lab = MadeUp(100)

    confirm([uneven(samples_per_second)], cast(Lab, lab), DEVICE, BUDGET)

    assert lab.trials[0].whole_updates == whole


def test_a_plan_is_confirmed_with_its_knobs() -> None:
    lab = MadeUp(100)

    confirm([uneven(options={"checkpoint": "all"})], cast(Lab, lab), DEVICE, BUDGET)

    assert lab.trials[0].knobs == Knobs(checkpoint="all")


def test_of_tuned_plans_the_first_that_runs_is_taken_in_their_order() -> None:
    lab = MadeUp(limit=12)
    sizes = [20, 5, 16, 12]
    tuned = [Plan.of(target_batch=20, micro_batch=size) for size in sizes]

    index, best = first_that_runs(tuned[:1] + tuned[2:], cast(Lab, lab), DEVICE, BUDGET)

    assert best is not None
    assert index == 2
    assert lab.tried == [20, 16, 12]
    assert (best.micro_batch, best.measured, best.peak_bytes) == (12, True, 12)
    assert len(lab.warnings) == 2


def test_a_plan_whose_knob_raises_in_a_fresh_process_is_passed_over() -> None:
    lab = MadeUp(100)
    compiled = replace(Plan.of(target_batch=20, micro_batch=10), options={"compile": True})
    plain = Plan.of(target_batch=20, micro_batch=5)

    def run(trial: Trial) -> Sample:
        if trial.knobs.compile:
            raise WorkloadError("no kernel")
        return MadeUp.run(lab, trial)

    lab.run = run  # type: ignore[method-assign]
    index, best = first_that_runs([compiled, plain], cast(Lab, lab), DEVICE, BUDGET)

    assert index == 1
    assert best is not None
    assert (best.micro_batch, best.options) == (5, {})
    assert "torch.compile raised in a fresh process: no kernel" in lab.warnings[0]


class OnlyPlain(MadeUp):
    """Runs a plan only if its sizes differ by one at most."""

    def run(self, trial: Trial) -> Sample:
        sample = super().run(trial)
        if max(trial.micro_batches) - min(trial.micro_batches) > 1:
            sample = replace(sample, outcome=Outcome.OOM)
        return sample


def test_where_an_aligned_plan_does_not_run_the_plain_one_of_as_many_steps_is_tried() -> None:
    lab = OnlyPlain(limit=14)
    aligned = replace(Plan.of(target_batch=40, micro_batch=14), micro_batches=(14, 14, 12), measured=True)

    confirmed = confirm([aligned, *plans(10)], cast(Lab, lab), DEVICE, BUDGET)

    assert lab.tried == [14, 14]
    assert confirmed[0].micro_batches == (14, 13, 13)
    assert len(lab.warnings) == 1

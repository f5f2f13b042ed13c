"""The loop over a real Optuna study, with trials that are made up: what is found, what is run, what is told."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import optuna
import pytest

from autoaccum.errors import WorkloadError
from autoaccum.plans import Plan
from autoaccum.records import PLAIN, Knobs
from autoaccum.tuning.incumbent import Incumbent
from autoaccum.tuning.intervals import compare
from autoaccum.tuning.memory import MemoryBook
from autoaccum.tuning.results import Fate, Measurement
from autoaccum.tuning.space import Candidate, Space
from autoaccum.tuning.stopwatch import Stopwatch
from autoaccum.tuning.storage import quiet
from autoaccum.tuning.study import Study
from autoaccum.tuning.tuner import Limits, Tuner
from tests.tuning import MadeUpBench, Recorder, book, space_of

OPTIMIZERS: dict[str, tuple[object, ...]] = {"optimizer": (None, "foreach", "fused")}
MANY: dict[str, tuple[object, ...]] = {
    "precision": (None, "bf16"),
    "compile": (False, True),
    "checkpoint": (None, "half", "all"),
    **OPTIMIZERS,
}


class Ran:
    """A finished tuning."""

    def __init__(self, tuner: Tuner, watcher: Recorder) -> None:
        self.tuner, self.rows = tuner, tuner.study.measurements()
        self.watcher = watcher
        (best,) = [row for row in self.rows if row.trial == tuner.incumbent.number]
        self.best: Measurement = best

    def count(self, fate: Fate) -> int:
        return sum(row.outcome is fate for row in self.rows)


def tune(
    bench: MadeUpBench,
    space: Space,
    *,
    memory: MemoryBook | None = None,
    trials: int = 16,
    seconds: float = 1000.0,
    seed: int = 0,
    storage: Any = None,
    **more: Any,
) -> Ran:
    memory = memory or book(space)
    largest = max(size for size in space.sizes if memory.fits(Candidate(micro_batch=size, knobs=space.ground)))
    watcher = Recorder()
    with quiet():
        study = Study(storage or optuna.storages.InMemoryStorage(), "a", space, seed=seed)
        tuner = Tuner(
            study=study,
            bench=bench,
            memory=memory,
            limits=Limits(trials=trials, seconds=seconds),
            world_size=1,
            watcher=watcher,
            clock=bench.clock,
            **more,
        )
        tuner.tune([Candidate(micro_batch=largest, knobs=space.ground)])
    return Ran(tuner, watcher)


def hump(optimum: int, factor: Callable[[Knobs], float] = lambda knobs: 1.0) -> Callable[[int, Knobs], float]:
    """A cost for each micro-step whose cost per sample is least at `optimum`."""
    return lambda size, knobs: factor(knobs) * 0.002 * size * (0.8 + 0.1 * (size / optimum + optimum / size))


def test_a_constant_throughput_ends_with_the_simplest_plan() -> None:
    for seed in range(10):
        bench = MadeUpBench(lambda size, knobs: 0.002 * size, optimizer_seconds=0.0, noise=0.02, seed=seed)

        best = tune(bench, space_of(64, OPTIMIZERS), seed=seed).best

        assert (best.micro_batch, best.options) == (64, {})


@pytest.mark.parametrize("optimum", [4, 16, 60, 240])
def test_the_fastest_size_is_found_wherever_it_lies(optimum: int) -> None:
    bench = MadeUpBench(hump(optimum), noise=0.005)

    ran = tune(bench, space_of(240))

    per_sample = {size: hump(optimum)(size, PLAIN) / size for size in ran.tuner.study.space.sizes}
    assert per_sample[ran.best.micro_batch] <= 1.02 * min(per_sample.values())


def test_knobs_that_help_are_found_together_and_others_are_left_alone() -> None:
    def factor(knobs: Knobs) -> float:
        speed = 0.6 if knobs.precision == "bf16" else 1.0
        speed *= 1.3 if knobs.compile else 1.0
        return speed * (1.4 if knobs.checkpoint else 1.0)

    bench = MadeUpBench(hump(32, factor), noise=0.005)

    best = tune(bench, space_of(128, MANY)).best

    assert (best.micro_batch, best.options) == (32, {"precision": "bf16"})


def test_checkpointing_is_tried_where_it_makes_room_and_pays() -> None:
    # Up to 8 samples fit; with all blocks checkpointed 64 do, and a micro-step costs the same whatever its size.
    bench = MadeUpBench(
        lambda size, knobs: 0.1 * (1.3 if knobs.checkpoint else 1.0),
        bytes_of=lambda size, knobs: size * (1 if knobs.checkpoint == "all" else 8),
        limit_bytes=64,
    )
    space = space_of(64, {"checkpoint": (None, "half", "all")})

    best = tune(bench, space, memory=book(space, limit_bytes=64, bytes_per_sample=8, largest=8)).best

    assert (best.micro_batch, best.options) == (64, {"checkpoint": "all"})


def test_a_knob_that_needs_more_memory_is_tried_small_first_and_never_where_it_would_not_fit() -> None:
    bench = MadeUpBench(
        lambda size, knobs: 0.1, bytes_of=lambda size, knobs: size * (3 if knobs.compile else 1), limit_bytes=64
    )
    space = space_of(64, {"compile": (False, True)})

    ran = tune(bench, space, memory=book(space, limit_bytes=64))

    compiled = [trial.micro_batch for _, trial in bench.orders if trial.knobs.compile]
    assert compiled[0] == 32
    assert not any(size * 3 > 64 for size in compiled[1:])
    assert any(row.options and row.outcome in (Fate.INFEASIBLE, Fate.OOM) for row in ran.rows)


def test_out_of_memory_is_a_violated_constraint_and_the_tuning_goes_on() -> None:
    bench = MadeUpBench(hump(8), bytes_of=lambda size, knobs: size, limit_bytes=48)
    space = space_of(64)

    ran = tune(bench, space, memory=book(space, limit_bytes=48))  # the search was wrong: 64 does not fit here

    assert ran.rows[0].outcome is Fate.OOM
    assert ran.best.micro_batch == 8
    trials = ran.tuner.study._study.get_trials()
    assert trials[0].state is optuna.trial.TrialState.PRUNED
    assert trials[0].constraints["memory"] > 0
    assert trials[ran.best.trial].constraints["memory"] <= 0


def test_a_knob_that_fails_is_not_tried_again_and_ends_nothing() -> None:
    bench = MadeUpBench(hump(16), fails=lambda trial: trial.knobs.compile, noise=0.005)

    ran = tune(bench, space_of(64, {"compile": (False, True), **OPTIMIZERS}), trials=8)

    assert ran.best.options.get("compile") is None
    assert ran.count(Fate.FAILED) >= 1
    assert next(row.message for row in ran.rows if row.outcome is Fate.FAILED) == "RuntimeError: no kernel"


def test_a_workload_that_fails_at_once_ends_it_and_is_named() -> None:
    bench = MadeUpBench(hump(16), fails=lambda trial: trial.micro_batch == 64)

    with pytest.raises(WorkloadError, match=r"no kernel \(micro-batch 64\)"):
        tune(bench, space_of(64))


@pytest.mark.parametrize("seed", range(3))
def test_a_size_that_fails_where_others_ran_is_left_out(seed: int) -> None:
    # BatchNorm refuses a single sample, which the search need not have tried.
    bench = MadeUpBench(hump(2), fails=lambda trial: trial.micro_batch == 1)

    ran = tune(bench, space_of(8), seed=seed)

    assert ran.best.micro_batch == 2
    assert [row.outcome for row in ran.rows if row.micro_batch == 1] == [Fate.FAILED]


def test_a_small_trial_is_never_of_a_single_sample() -> None:
    bench = MadeUpBench(hump(2), fails=lambda trial: trial.micro_batch == 1)

    ran = tune(bench, space_of(2, {"precision": (None, "bf16")}))

    assert Fate.OK in {row.outcome for row in ran.rows if row.options}


def test_slow_candidates_are_given_up_early() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.02 + 0.001 * size, noise=0.01)

    ran = tune(bench, space_of(64))

    pruned = [row for row in ran.rows if row.outcome is Fate.PRUNED]
    assert pruned
    assert max(row.windows for row in pruned) < 10
    assert ran.best.micro_batch == 64


def test_no_candidate_is_measured_twice() -> None:
    bench = MadeUpBench(hump(8), noise=0.02)

    ran = tune(bench, space_of(64, OPTIMIZERS), trials=60)

    tried = Counter((row.micro_batch, str(row.options)) for row in ran.rows)
    assert max(tried.values()) == 1
    assert len(tried) > 12


def test_the_budget_of_trials_and_of_seconds_is_kept() -> None:
    few = tune(MadeUpBench(hump(8)), space_of(64, MANY), trials=5)
    brief = tune(MadeUpBench(hump(8)), space_of(64, MANY), trials=500, seconds=60.0)

    assert len(few.rows) == 5
    assert brief.tuner.seconds < 60.0 + 60.0 / 4 + 15.0  # a trial that has begun is ended, and its duel


def test_the_incumbent_is_dethroned_only_by_a_duel() -> None:
    bench = MadeUpBench(hump(8), noise=0.005)

    ran = tune(bench, space_of(64))

    duels = ran.tuner.study.duels()
    crowned = [number for number in dict.fromkeys(ran.watcher.bests) if number is not None]
    assert crowned[0] == 0
    assert [duel.winner for duel in duels if duel.winner == duel.challenger] == crowned[1:]
    assert all(duel.ratio < 1 for duel in duels if duel.winner == duel.challenger)


def test_a_noisy_workload_does_not_flip_between_runs() -> None:
    def one(seed: int) -> int:
        source = random.Random(seed)  # the machine's noise differs from run to run, the tuner's seed does not
        bench = MadeUpBench(
            lambda size, knobs: 0.002 * size * source.choice([1.0, 1.0, 1.1, 1.5]), noise=0.1, seed=seed
        )
        return tune(bench, space_of(64, OPTIMIZERS), seed=7).best.micro_batch

    chosen = Counter(one(seed) for seed in range(20))

    assert chosen.most_common(1)[0][0] == 64
    assert chosen.most_common(1)[0][1] >= 18


def test_energy_may_choose_another_plan_than_throughput() -> None:
    def run(energy: bool) -> Measurement:
        bench = MadeUpBench(
            lambda size, knobs: 0.02 * (0.8 if knobs.tf32 else 1.0),
            joules_per_second=lambda knobs: 300.0 if knobs.tf32 else 200.0,
        )
        return tune(bench, space_of(8, {"tf32": (False, True)}), energy=energy).best

    assert run(energy=False).options == {"tf32": True}
    saving = run(energy=True)
    assert saving.options == {}
    assert saving.joules_per_sample == pytest.approx(200.0 * 0.03 / 8)


def test_an_uneven_plan_must_be_worth_it() -> None:
    from autoaccum.plans import Plan

    def run(worth_uneven: float) -> int:
        sizes = {size: Plan.of(target_batch=64, micro_batch=size) for size in (64, 33)}
        bench = MadeUpBench(lambda size, knobs: 0.002 * size * (1.0 if size == 64 else 0.97))
        return tune(bench, Space(plans=sizes, values={}, ground=PLAIN), worth_uneven=worth_uneven).best.micro_batch

    assert run(1.0) == 33
    assert run(1.05) == 64


def test_compile_time_is_told_apart() -> None:
    ran = tune(MadeUpBench(hump(8)), space_of(8, {"compile": (False, True)}))

    compiled = {row.options.get("compile", False): row.compile_seconds for row in ran.rows if row.windows}
    assert compiled[True] == pytest.approx(5.0, abs=0.2)
    assert compiled[False] is None


def test_five_readings_of_energy_on_each_side_decide_a_duel() -> None:
    bench = MadeUpBench(
        lambda size, knobs: 0.002 * size, joules_per_second=lambda knobs: 97.0 if knobs.optimizer == "fused" else 100.0
    )

    # A quarter of it is for a duel: time for six rounds, of which the first gives no reading, and not for eight.
    ran = tune(bench, space_of(64, {"optimizer": (None, "fused")}), seconds=320.0, energy=True)

    assert ran.best.options == {"optimizer": "fused"}


@pytest.mark.parametrize(("windows", "wins"), [(2, False), (8, True)])
def test_an_even_plan_takes_the_place_of_an_uneven_one_only_with_enough_windows(windows: int, wins: bool) -> None:
    plans = {size: Plan.of(target_batch=20, micro_batch=size) for size in (5, 7)}
    space = Space(plans=plans, values={}, ground=PLAIN)
    study = Study(optuna.storages.InMemoryStorage(), "a", space, seed=0)
    bench = MadeUpBench(lambda size, knobs: 0.1)
    stopwatch = Stopwatch(bench, energy=False, fresh=False, room_for_two=True, clock=bench.clock)
    incumbent = Incumbent(study, stopwatch, energy=False, worth_uneven=1.05)
    even, uneven = (
        Measurement(trial=0, outcome=Fate.OK, micro_batch=size, accumulation_steps=plans[size].accumulation_steps)
        for size in (5, 7)
    )

    assert incumbent._wins(compare([1.0] * windows, [1.02] * windows, 2), even, uneven) is wins

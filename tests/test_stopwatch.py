"""What a window is, when there are enough of them, and how two candidates take turns; on a made-up bench."""

from __future__ import annotations

import pytest

from autoaccum.plans import Plan
from autoaccum.records import PLAIN, Knobs, Sample
from autoaccum.tuning.intervals import Comparison
from autoaccum.tuning.stopwatch import Measured, Stopwatch
from tests.tuning import MadeUpBench


def stopwatch(bench: MadeUpBench, *, energy: bool = False, fresh: bool = False, room: bool = True) -> Stopwatch:
    return Stopwatch(bench, energy=energy, fresh=fresh, room_for_two=room, clock=bench.clock)


def never(measured: Measured) -> bool:
    return False


def plan(target: int, size: int) -> Plan:
    return Plan.of(target_batch=target, micro_batch=size)


def test_the_time_is_that_of_a_whole_update_without_the_warm_up() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.001 * size, optimizer_seconds=0.02)

    measured = stopwatch(bench).measure(plan(64, 16), PLAIN, seconds=60, give_up=never)

    assert measured.seconds is not None
    assert measured.seconds.median == pytest.approx(0.084)
    assert measured.optimizer_seconds == pytest.approx(0.02)
    assert measured.warm_up_seconds > 5.0


def test_a_long_update_is_measured_in_part_and_scaled_to_the_whole() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.01 * size, optimizer_seconds=0.5)

    measured = stopwatch(bench).measure(plan(1000, 10), PLAIN, seconds=60, give_up=never)

    assert measured.seconds is not None
    assert measured.seconds.median == pytest.approx(10.5)
    assert max(trial.accumulation_steps for _, trial in bench.orders) <= 4
    assert bench.now < 20


def test_adding_to_a_gradient_is_counted_for_all_micro_steps_but_the_first() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.2, optimizer_seconds=0.0, adding_seconds=0.03)

    measured = stopwatch(bench).measure(plan(64, 1), PLAIN, seconds=60, give_up=never)

    assert measured.seconds is not None
    assert measured.seconds.median == pytest.approx(64 * 0.2 + 63 * 0.03)


def test_an_uneven_plan_is_scaled_by_its_samples() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.2 * size, optimizer_seconds=0.0)

    measured = stopwatch(bench).measure(plan(10, 4), PLAIN, seconds=60, give_up=never)

    assert measured.seconds is not None
    assert measured.seconds.median == pytest.approx(2.0)


def test_steady_windows_are_few_and_noisy_ones_are_repeated() -> None:
    counts = []
    for noise in (0.0, 0.05):
        bench = MadeUpBench(lambda size, knobs: 0.3, noise=noise)
        measured = stopwatch(bench).measure(plan(8, 8), PLAIN, seconds=1000, give_up=never)
        assert measured.seconds is not None
        assert measured.seconds.width <= 0.03
        counts.append(measured.seconds.values)

    assert counts[0] == 4
    assert counts[1] > 15


def test_when_the_time_is_up_the_interval_is_as_wide_as_it_is() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.3, noise=0.3)

    measured = stopwatch(bench).measure(plan(8, 8), PLAIN, seconds=10, give_up=never)

    assert measured.seconds is not None
    assert measured.seconds.width > 0.03
    assert bench.now < 18  # the warm-up took five, which are not counted


def test_a_measurement_can_be_given_up() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.3)

    measured = stopwatch(bench).measure(plan(8, 8), PLAIN, seconds=100, give_up=lambda measured: True)

    assert measured.given_up
    assert len(bench.orders) == 1


def test_a_size_that_does_not_run_gives_its_sample() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.3, limit_bytes=4)

    measured = stopwatch(bench).measure(plan(8, 8), PLAIN, seconds=100, give_up=never)

    assert measured.seconds is None
    assert measured.sample.message == "out of memory"


def test_energy_is_the_mean_power_times_the_time_of_an_update() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.3, optimizer_seconds=0.1, joules_per_second=lambda knobs: 200.0)

    measured = stopwatch(bench, energy=True).measure(plan(16, 8), PLAIN, seconds=100, give_up=never)

    assert measured.joules_per_sample is not None
    assert measured.joules_per_sample.median == pytest.approx(200.0 * 0.7 / 16)


@pytest.mark.parametrize("seconds", [0.003, 0.02, 0.4])
def test_a_counter_that_moves_in_ticks_is_read_over_seconds(seconds: float) -> None:
    bench = MadeUpBench(
        lambda size, knobs: seconds, optimizer_seconds=0.0, joules_per_second=lambda knobs: 200.0, joules_per_tick=20.0
    )
    watch = stopwatch(bench, energy=True)

    measured = watch.measure(plan(8, 8), PLAIN, seconds=100, give_up=never)
    found = watch.duel((plan(8, 8), PLAIN), (plan(8, 8), Knobs(tf32=True)), seconds=100)

    assert measured.joules_per_sample is not None
    assert measured.joules_per_sample.median == pytest.approx(200.0 * seconds / 8, rel=0.12)
    assert isinstance(found, Comparison)
    assert found.ratio == pytest.approx(1.0, abs=0.15)


def test_a_device_that_stops_telling_its_energy_decides_no_duel() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.3)

    found = stopwatch(bench, energy=True).duel((plan(8, 8), PLAIN), (plan(8, 8), Knobs(tf32=True)), seconds=20)

    assert isinstance(found, Comparison)
    assert not found.settled


def test_in_a_duel_both_take_turns_and_neither_goes_first_every_time() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.3 if knobs.tf32 else 0.4, noise=0.1)

    found = stopwatch(bench).duel((plan(8, 8), PLAIN), (plan(8, 8), Knobs(tf32=True)), seconds=100)

    assert isinstance(found, Comparison)
    assert found.faster
    assert found.ratio == pytest.approx(0.31 / 0.41, rel=0.1)
    turns = [trial.knobs.tf32 for _, trial in bench.orders]
    assert turns[:4] == [False, True, True, False]


def test_what_slows_the_machine_for_a_while_decides_no_duel() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.3 + 0.02 * bench.now, optimizer_seconds=0.0)

    found = stopwatch(bench).duel((plan(8, 8), PLAIN), (plan(8, 8), Knobs(tf32=True)), seconds=60)

    assert isinstance(found, Comparison)
    assert not found.faster
    assert not found.slower


def test_where_the_past_of_a_process_tells_each_candidate_has_its_own() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.3)
    watch = stopwatch(bench, fresh=True)

    watch.measure(plan(8, 8), PLAIN, seconds=100, give_up=never)
    watch.duel((plan(8, 8), PLAIN), (plan(8, 4), PLAIN), seconds=100)

    measured = [trial for seat, trial in bench.orders if seat == ""]
    assert [trial.fresh for trial in measured] == [True] + [False] * (len(measured) - 1)
    assert "" in bench.left  # or there would be three processes
    for seat, size in (("incumbent", 8), ("challenger", 4)):
        turns = [trial for each, trial in bench.orders if each == seat]
        assert {trial.micro_batch for trial in turns} == {size}
        # Another process for every second turn: how one happens to be laid out must not decide.
        assert [trial.fresh for trial in turns[:4]] == [True, False, True, False]
        assert all(trial.warm is not trial.fresh for trial in turns)
        assert seat in bench.left


def test_without_room_for_two_processes_a_duel_starts_one_for_each_turn() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.3)

    stopwatch(bench, fresh=True, room=False).duel((plan(8, 8), PLAIN), (plan(8, 4), PLAIN), seconds=100)

    assert all(seat == "" and trial.fresh and not trial.warm for seat, trial in bench.orders)


def test_a_duel_that_one_side_does_not_survive_gives_its_sample() -> None:
    bench = MadeUpBench(lambda size, knobs: 0.3, fails=lambda trial: trial.knobs.tf32)

    found = stopwatch(bench).duel((plan(8, 8), PLAIN), (plan(8, 8), Knobs(tf32=True)), seconds=100)

    assert isinstance(found, Sample)
    assert found.options == {"tf32": True}

"""What tuning gained, and what the winner costs, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from autoaccum.knobs.names import of_options, turns, words
from autoaccum.plans import Plan
from autoaccum.records import Sample
from autoaccum.tuning.intervals import WORTH
from autoaccum.tuning.results import Fate, Measurement, Tuning


def gained(tuning: Tuning) -> str:
    """Say in a line what the tuning brought, against the largest micro-batch that fits."""
    ran = sum(row.outcome is not Fate.INFEASIBLE for row in tuning.trials)
    start = f"{ran} trial{'s' if ran != 1 else ''} in {tuning.seconds:.0f} s"
    best, largest = tuning.trial(tuning.best), tuning.trial(tuning.largest)
    if best is None:
        return f"{start}: none ended well, the order is that of the search"
    if largest is None or largest.update_seconds is None or best.update_seconds is None:
        return (
            f"{start}: micro-batch {best.micro_batch}{_with(best)} takes {_seconds(best)} for an update{_but(tuning)}"
        )
    if best.trial == largest.trial:
        return f"{start}: {_nothing_faster(tuning)}"
    usual = f"the largest micro-batch that fits ({largest.micro_batch}{_with(largest)})"
    if tuning.objective == "energy" and best.joules_per_sample and largest.joules_per_sample:
        ratio = 1 / (_chain(tuning, best, largest) or largest.joules_per_sample / best.joules_per_sample)
        return f"{start}: {best.joules_per_sample:.3g} J for a sample, {ratio:.2f} times that of {usual}"
    ratio = _chain(tuning, best, largest) or largest.update_seconds / best.update_seconds
    if ratio < 1 + WORTH:
        return f"{start}: as fast as {usual}, within the noise"
    return f"{start}: {ratio:.2f} times as fast as {usual}"


def _nothing_faster(tuning: Tuning) -> str:
    """Say that the largest micro-batch stays, and what was left open for lack of time."""
    but = _but(tuning)
    if but:
        return f"the largest micro-batch that fits stays{but}"
    return "nothing is faster than the largest micro-batch that fits, by more than the noise"


def _but(tuning: Tuning) -> str:
    """Say what was left open for lack of time; "" where nothing was."""
    open_ = []
    unsettled = [d for d in tuning.duels if d.winner == d.incumbent == tuning.best and d.ratio < 1 - 2 * WORTH]
    if unsettled:
        duel = min(unsettled, key=lambda duel: duel.ratio)
        row = tuning.trial(duel.challenger)
        named = f"micro-batch {row.micro_batch}{_with(row)}" if row is not None else f"trial {duel.challenger}"
        open_.append(f"{named} looked {1 / duel.ratio:.2f} times as fast and there was no time to settle it")
    turned = [set(row.options.items()) for row in tuning.trials]
    untried = [name for name in tuning.allowed if not any(turns(name) & each for each in turned)]
    out_of_time = tuning.seconds >= tuning.seconds_allowed > 0
    if untried and out_of_time:
        open_.append(f"{', '.join(untried)} not tried")
    return f", but {'; '.join(open_)}: give more --tune-seconds" if open_ else ""


def _chain(tuning: Tuning, best: Measurement, largest: Measurement) -> float | None:
    """Give how much faster the best is by the duels that led from one to the other; None where they did not."""
    number, speed = best.trial, 1.0
    for duel in reversed(tuning.duels):
        if duel.winner == duel.challenger == number:
            number, speed = duel.incumbent, speed / duel.ratio
    return speed if number == largest.trial and speed != 1.0 else None


def prices(plan: Plan, tuning: Tuning | None, samples: Sequence[Sample]) -> list[str]:
    """Say what the knobs of the plan cost, where that is known."""
    kind = plan.options.get("checkpoint")
    if kind is None:
        return []
    what = words(of_options({"checkpoint": kind}))[0]
    plain = {name: value for name, value in plan.options.items() if name != "checkpoint"}
    rows = () if tuning is None else tuning.trials
    pair = [_find(rows, plan.micro_batch, options) for options in (plan.options, plain)]
    if pair[0] is not None and pair[1] is not None:
        more = (pair[0].update_seconds or 0) / (pair[1].update_seconds or 1) - 1
        return [f"{what}: an update takes {more:+.0%} against the same micro-batch without, measured"]
    last = next((s for s in reversed(samples) if s.phase == "confirm" and s.ok and s.forward_seconds), None)
    if last is None or not last.step_seconds or not last.forward_seconds:
        return [f"{what}: the blocks' forward passes are computed twice"]
    share = last.forward_seconds / last.step_seconds
    return [
        f"{what}: their forward passes are computed twice, which takes up to {share:.0%} of an update "
        f"({last.forward_seconds:.3g} of {last.step_seconds:.3g} s is the forward pass, measured)"
    ]


def _find(rows: Sequence[Measurement], micro_batch: int, options: dict[str, object]) -> Measurement | None:
    return next((r for r in rows if r.micro_batch == micro_batch and r.options == options and r.update_seconds), None)


def _with(row: Measurement) -> str:
    turned = words(of_options(row.options))
    return f" with {', '.join(turned)}" if turned else ""


def _seconds(row: Measurement) -> str:
    return f"{row.update_seconds:.3g} s"

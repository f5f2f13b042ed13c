"""Is the tuned plan as fast as the best of all candidates? Real models on the CPU, one run each.

For each model: a probe as by `autoaccum probe` with the default budget of tuning; then every candidate that the tuner
could choose from (sizes that fit x values of the knobs), each in a fresh process, in shuffled order: a first round by
the tuner's own rule (until the median is known to 3 %, an eighth of the budget at most), then more rounds of whole
updates. The best of many noisy medians looks better than it is, so the chosen one, the naive one (the largest
micro-batch that fits, without knobs) and the three best meet in a final of more interleaved rounds, from which the
ratios and their intervals come. What is best there is still the best of five. The cost of tuning is compared with the
first round alone, and with all rounds before the final. Nothing else should run meanwhile. Writes results/tune/.

python benchmarks/tune/on_cpu.py [--models mlp,vit] [--rounds 1] [--final 6] [--quick]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from autoaccum.confirm import training_limit
from autoaccum.isolate import Answer, WorkerSpec
from autoaccum.lab import WorkerLab
from autoaccum.pipeline import TUNE_SECONDS, TUNE_TRIALS, run
from autoaccum.plans import Plan
from autoaccum.records import PLAIN, Knobs, Request, Trial
from autoaccum.report.record import Report
from autoaccum.tuning import session
from autoaccum.tuning.intervals import Comparison, compare, estimate
from autoaccum.tuning.results import Fate, Tuning
from autoaccum.tuning.space import Candidate, Space
from autoaccum.tuning.stopwatch import Stopwatch
from autoaccum.watching import Silent

WORKLOADS = Path(__file__).with_name("workloads")
ORDER_SECONDS, FEWEST, MOST = 1.0, 2, 8  # of one order in later rounds: about so long, and so many windows
TOP = 3


class Model(NamedTuple):
    """What is tuned."""

    name: str
    target: int
    allow: str | None = None


MODELS = [Model("mlp", 24), Model("gpt", 24), Model("cnn", 12, "channels_last"), Model("lstm", 48), Model("vit", 24)]


@dataclass(kw_only=True)
class Bench:
    """A lab that keeps the windows of what it times, scaled to whole updates."""

    lab: WorkerLab
    plans: dict[int, Plan]
    seconds: dict[Candidate, list[float]] = field(default_factory=dict)
    short: dict[Candidate, list[float]] = field(default_factory=dict)  # used where there is nothing else

    def time(self, trial: Trial, seat: str = "") -> Answer:
        """Run one trial; its first window is warm-up unless it goes on from another."""
        answer = self.lab.time(trial, seat)
        plan = self.plans[trial.micro_batch]
        # A stopwatch's first order, of two micro-steps, may only tell it how long a window should be.
        whole = trial.warm or trial.accumulation_steps == plan.accumulation_steps
        kept = (self.seconds if whole else self.short).setdefault(
            Candidate(micro_batch=trial.micro_batch, knobs=trial.knobs), []
        )
        for window in answer.windows if trial.warm else answer.windows[1:]:
            computing = window.seconds - window.optimizer_seconds
            kept.append(computing * plan.rank_batch / window.samples + window.optimizer_seconds)
        return answer

    def leave(self, seat: str) -> None:
        """End the worker of a seat."""
        self.lab.leave(seat)

    def once(self, candidate: Candidate) -> None:
        """Run some whole updates in a fresh process."""
        plan, known = self.plans[candidate.micro_batch], self.seconds.get(candidate)
        each = estimate(known).median if known else ORDER_SECONDS
        order = Trial(
            micro_batch=plan.micro_batch,
            accumulation_steps=plan.accumulation_steps,
            micro_batches=plan.micro_batches,
            updates=1 + max(FEWEST, min(MOST, round(ORDER_SECONDS / each))),
            phase="tune",
            fresh=True,
            knobs=candidate.knobs,
        )
        self.time(order)


def ask(model: Model, trials: int, seconds: float) -> tuple[Request, Report, Tuning]:
    request = Request(
        workload=str(WORKLOADS / f"{model.name}.py"),
        target_batch=model.target,
        device="cpu",
        allow=model.allow,
        tune_trials=trials,
        tune_seconds=seconds,
    )
    report, _ = run(request, out=None)
    if report.plan is None or report.budget is None or report.tuning is None:
        raise SystemExit(f"no plan for {model.name}")
    return request, report, report.tuning


def candidates(request: Request, report: Report, tuning: Tuning) -> tuple[Space, list[Candidate]]:
    """Give the tuner's space, and of it what fits: all sizes up to the largest that ran."""
    assert report.budget is not None
    sizes = session._sizes(request, report.samples, report.budget, PLAIN, report.plans)
    space = Space(plans=sizes, values=session._values(tuning.allowed, PLAIN), ground=PLAIN)
    largest = report.bracket.largest_ok or 0
    return space, [
        Candidate(micro_batch=size, knobs=knobs) for knobs in space.all_knobs() for size in sizes if size <= largest
    ]


def rounds(bench: Bench, among: Iterable[Candidate], count: int, rng: random.Random) -> None:
    among = list(among)
    for _ in range(count):
        rng.shuffle(among)
        for candidate in among:
            bench.once(candidate)


def case(model: Model, options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    request, report, tuning = ask(model, options.trials, options.seconds)
    assert report.plan is not None
    space, everything = candidates(request, report, tuning)
    chosen = Candidate(micro_batch=report.plan.micro_batch, knobs=Knobs.from_dict(report.plan.options))
    naive = Candidate(micro_batch=max(each.micro_batch for each in everything), knobs=PLAIN)
    rng = random.Random(0)
    spec = WorkerSpec(device="cpu", workload=request.workload, seed=request.seed)
    with WorkerLab(spec, timeout_seconds=request.timeout, watcher=Silent()) as lab:
        device, budget = lab.open()
        lab.as_in_training(training_limit(device, budget))
        bench = Bench(lab=lab, plans=dict(space.plans))
        watch = Stopwatch(bench, energy=False, fresh=True, room_for_two=True, clock=time.monotonic)
        began = time.monotonic()
        rng.shuffle(everything)
        for each in everything:
            plan = space.plans[each.micro_batch]
            watch.measure(plan, each.knobs, seconds=options.seconds / 8, give_up=lambda measured: False)
            bench.seconds[each] = bench.seconds.get(each) or bench.short.get(each, [])
        by_rule = time.monotonic() - began
        rounds(bench, everything, options.rounds, rng)
        exhaustive = time.monotonic() - began
        ran = [each for each in everything if bench.seconds[each]]
        ranked = sorted(ran, key=lambda each: estimate(bench.seconds[each]).median)
        final = Bench(lab=lab, plans=bench.plans)
        rounds(final, dict.fromkeys([chosen, naive, *ranked[:TOP]]), options.final, rng)
    best = min(final.seconds, key=lambda each: estimate(final.seconds[each]).median)
    to_best = compare(final.seconds[chosen], final.seconds[best], options.final)
    to_naive = compare(final.seconds[naive], final.seconds[chosen], options.final)
    summary = {
        "model": model.name,
        "target_batch": model.target,
        "candidates": len(everything),
        "failed": len(everything) - len(ran),
        "trials": sum(row.outcome is not Fate.INFEASIBLE for row in tuning.trials),
        "tuning_seconds": tuning.seconds,
        "exhaustive_by_rule_seconds": by_rule,
        "exhaustive_seconds": exhaustive,
        "cost_by_rule": tuning.seconds / by_rule,
        "cost": tuning.seconds / exhaustive,
        "chosen": _text(chosen),
        "best": _text(best),
        "naive": _text(naive),
        "of_best": to_best.ratio,
        "of_best_low": to_best.low,
        "of_best_high": to_best.high,
        **_over(to_naive),
    }
    return summary, [_row(model, each, bench, final) for each in ranked]


def _over(comparison: Comparison) -> dict[str, Any]:
    """Give the speed of the chosen one over the naive one: the inverse of the times."""
    return {
        "over_naive": 1 / comparison.ratio,
        "over_naive_low": 1 / comparison.high,
        "over_naive_high": 1 / comparison.low,
        "beats_naive": comparison.high < 1,
        "loses_to_naive": comparison.low > 1,
    }


def _row(model: Model, candidate: Candidate, bench: Bench, final: Bench) -> dict[str, Any]:
    found = estimate(bench.seconds[candidate])
    last = estimate(final.seconds[candidate]) if candidate in final.seconds else None
    return {
        "model": model.name,
        "candidate": _text(candidate),
        "update_seconds": found.median,
        "update_seconds_low": found.low,
        "update_seconds_high": found.high,
        "windows": found.values,
        "samples_per_second": model.target / found.median,
        "final_seconds": None if last is None else last.median,
        "final_seconds_low": None if last is None else last.low,
        "final_seconds_high": None if last is None else last.high,
        "final_windows": None if last is None else last.values,
    }


def _text(candidate: Candidate) -> str:
    options = candidate.knobs.options
    return f"{candidate.micro_batch}" + (f" {json.dumps(options)}" if options else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(model.name for model in MODELS))
    parser.add_argument("--trials", type=int, default=TUNE_TRIALS)
    parser.add_argument("--seconds", type=float, default=TUNE_SECONDS, help="of tuning")
    parser.add_argument("--rounds", type=int, default=1, help="over all candidates, after the first")
    parser.add_argument("--final", type=int, default=6, help="rounds of the final")
    parser.add_argument("--quick", action="store_true", help="to see that it runs: too short to tell anything")
    parser.add_argument("--out", type=Path, default=Path("results/tune"))
    options = parser.parse_args()
    if options.quick:
        options.trials, options.seconds, options.rounds, options.final = 4, 8.0, 0, 1
    options.out.mkdir(parents=True, exist_ok=True)
    summaries, rows = [], []
    for model in MODELS:
        if model.name in options.models.split(","):
            summary, measured = case(model, options)
            summaries.append(summary)
            rows.extend(measured)
            print(summary, flush=True)
            pd.DataFrame(summaries).to_csv(options.out / "cpu.csv", index=False, float_format="%.4f")
            pd.DataFrame(rows).to_csv(options.out / "cpu-candidates.csv", index=False, float_format="%.5f")
    table = pd.DataFrame(summaries)
    print(table.to_string(index=False))
    print(
        f"of the best: {table.of_best.min():.3f} at least; cost: {table.cost_by_rule.max():.2f} of the first round at "
        f"most; beats the naive choice in {table.beats_naive.mean():.0%} of {len(table)}"
    )


if __name__ == "__main__":
    main()

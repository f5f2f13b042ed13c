"""Does tuning find the fastest plan where it is known? Seeded cases on the virtual GPU, in simulated time.

Each case is a model whose update takes a time given by a formula (cases.py): of the micro-batch, bf16, checkpoints and
a fused optimizer. It is probed as by `autoaccum probe --allow bf16,checkpoint` with the default budget of tuning. The
true best is the least of the formula over all candidates that fit; which do is found out beforehand on the same device
without simulated time, by bisection for each set of knobs. Uneven sizes count as best only where they are 5 % faster
than every even one, as --split auto has it. A case is right if the plan's true time is within 1 % of the best: that is
the tuner's own threshold of what is worth a change (WORTH). The naive choice is the largest micro-batch that fits,
without knobs. The formula is checked against what the tuner measured (`worst_miss`). Writes results/tune/.

.venv-gpu/bin/python benchmarks/tune/on_virtual_gpu.py [--cases 40] [--first 0] [--jobs 2]
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from cases import DEVICE_BYTES, GFLOPS, Case, seeded

from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.knobs import names
from autoaccum.pipeline import TUNE_SECONDS, TUNE_TRIALS, run
from autoaccum.records import PLAIN, Knobs, Request, Trial
from autoaccum.report.record import Report
from autoaccum.solve import WORTH_UNEVEN
from autoaccum.tuning import session
from autoaccum.tuning.intervals import WORTH
from autoaccum.tuning.results import Fate, Tuning
from autoaccum.tuning.space import Candidate, Space

WORKLOAD = str(Path(__file__).with_name("simulated.py"))
DEVICE = f"virtual:{DEVICE_BYTES >> 30}GiB"


def ask(case: Case) -> tuple[Report, Tuning, Space]:
    """Probe as users do; give the report, and all that there was to choose from."""
    request = Request(
        workload=WORKLOAD,
        target_batch=case.target,
        device=f"{DEVICE},gflops={GFLOPS}",
        allow="bf16,checkpoint",
        tune_trials=TUNE_TRIALS,
        tune_seconds=TUNE_SECONDS,
        seed=case.seed,
    )
    report, _ = run(request, out=None)
    if report.plan is None or report.budget is None or report.tuning is None:
        raise SystemExit(f"no plan for case {case.seed}")
    sizes = session._sizes(request, report.samples, report.budget, PLAIN, report.plans)
    space = Space(plans=sizes, values=session._values(report.tuning.allowed, PLAIN), ground=PLAIN)
    return report, report.tuning, space


def all_that_fit(space: Space, limit_bytes: int) -> list[Candidate]:
    """Find by trials which candidates fit, on the same device where nothing takes time."""
    found: list[Candidate] = []
    for segments in space.values.get("expandable_segments", (False,)):
        variables = names.environment(Knobs(expandable_segments=segments), os.environ)
        spec = WorkerSpec(device=DEVICE, workload=WORKLOAD, limit_bytes=limit_bytes, variables=variables)
        with Worker(spec, timeout_seconds=120) as worker:
            sizes: dict[Knobs, list[int]] = {}
            for knobs in space.all_knobs():
                if knobs.expandable_segments != segments:
                    continue
                kind = replace(knobs, optimizer=None)  # how a step is computed takes no memory here
                if kind not in sizes:
                    sizes[kind] = _fitting(space, kind, worker)
                found.extend(Candidate(micro_batch=size, knobs=knobs) for size in sizes[kind])
    return found


def _fitting(space: Space, knobs: Knobs, worker: Worker) -> list[int]:
    whole = max(space.sizes)
    smaller = [size for size in space.sizes if size < whole]

    def runs(size: int, steps: int) -> bool:
        order = Trial(micro_batch=size, accumulation_steps=steps, updates=3, knobs=knobs)
        return worker.run(0, order, smaller_ran=True).sample.ok

    low, high = 0, len(smaller)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if runs(smaller[middle], 2) else (low, middle)
    return [*smaller[:low], *([whole] if runs(whole, 1) else [])]


def true_best(fitting: list[Candidate], space: Space, seconds: Callable[[Candidate], float]) -> Candidate:
    even = [each for each in fitting if space.plans[each.micro_batch].even]
    best, best_even = min(fitting, key=seconds), min(even, key=seconds)
    return best if seconds(best) * WORTH_UNEVEN < seconds(best_even) else best_even


def case_of(seed: int) -> dict[str, Any]:
    os.environ["AUTOACCUM_TUNE_CASE"] = str(seed)
    case = seeded(seed)
    report, tuning, space = ask(case)

    def seconds(candidate: Candidate) -> float:
        return case.update(space.plans[candidate.micro_batch].micro_batches, candidate.knobs)

    assert report.plan is not None and report.budget is not None  # noqa: PT018
    chosen = Candidate(micro_batch=report.plan.micro_batch, knobs=Knobs.from_dict(report.plan.options))
    fitting = all_that_fit(space, report.budget.limit_bytes)
    best = true_best(fitting, space, seconds)
    naive = Candidate(micro_batch=max(each.micro_batch for each in fitting if each.knobs == PLAIN), knobs=PLAIN)
    tried = [
        (row, Candidate(micro_batch=row.micro_batch, knobs=Knobs.from_dict(row.options)))
        for row in tuning.trials
        if row.outcome in (Fate.OK, Fate.PRUNED)
    ]
    misses = [(row.update_seconds or 0) / seconds(each) - 1 for row, each in tried]
    return {
        "seed": seed,
        "curve": case.curve,
        "target_batch": case.target,
        "candidates": len(space.sizes) * len(list(space.all_knobs())),
        "fitting": len(fitting),
        "bf16": case.bf16,
        "fused": case.fused,
        "trials": len(tried),
        "infeasible": sum(row.outcome is Fate.INFEASIBLE for row in tuning.trials),
        "duels": len(tuning.duels),
        "tuning_seconds": tuning.seconds,
        "chosen": _text(chosen),
        "chosen_seconds": seconds(chosen),
        "chosen_fits": chosen in fitting,
        "best": _text(best),
        "best_seconds": seconds(best),
        "regret": seconds(chosen) / seconds(best) - 1,
        "found": seconds(chosen) <= seconds(best) * (1 + WORTH),
        "best_was_tried": best in [each for _, each in tried],
        "naive": _text(naive),
        "naive_regret": seconds(naive) / seconds(best) - 1,
        "naive_found": seconds(naive) <= seconds(best) * (1 + WORTH),
        "worst_miss": max(misses, key=abs),
        "tried": " | ".join(f"{_text(each)} {1000 * (row.update_seconds or 0):.1f}" for row, each in tried),
        "fought": " | ".join(f"{d.challenger}>{d.incumbent} {d.ratio:.3f} won {d.winner}" for d in tuning.duels),
    }


def _text(candidate: Candidate) -> str:
    options = candidate.knobs.options
    return f"{candidate.micro_batch}" + (f" {json.dumps(options)}" if options else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="cases at once: they mostly sleep")
    parser.add_argument("--out", type=Path, default=Path("results/tune"))
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.cases)
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(case_of, seeds):
            rows.append(row)
            table = pd.DataFrame(rows)
            table.to_csv(options.out / "virtual-gpu.csv", index=False, float_format="%.5f")
            if not row["found"]:
                print({key: row[key] for key in ("seed", "curve", "tried", "fought")})
            print(f"{row['seed']}: {row['chosen']}, best {row['best']}, regret {row['regret']:.2%}", flush=True)
    print(table.drop(columns=["tried", "fought"]).to_string(index=False))
    print(
        f"found {table.found.mean():.1%} of {len(table)} (naive {table.naive_found.mean():.1%}); "
        f"regret mean {table.regret.mean():.2%} worst {table.regret.max():.2%} "
        f"(naive {table.naive_regret.mean():.1%}, {table.naive_regret.max():.1%}); "
        f"within 1 % {(table.regret <= 0.01).mean():.1%}; "
        f"trials {table.trials.mean():.1f} in {table.tuning_seconds.mean():.0f} s of "
        f"{table.fitting.mean():.0f} that fit; the formula misses by {table.worst_miss.abs().max():.2%} at most"
    )


if __name__ == "__main__":
    main()

"""Does a plan still run afterwards? Probes examples on the CPU under budgets, then runs each plan again and again.

Every repetition is a fresh process under the same limit, with more updates than the probe ran: once as training is
set up by default, once with malloc and MKL returning memory at once, as the search does. The candidate that the
probe refused is run as often, in the latter way. Writes results/plan-holds/.

python benchmarks/plan_holds.py [--repeats 5]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

import autoaccum
from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.records import Outcome, Sample, Trial

CASES = [
    ("examples/mlp.py", 8192, ("520MiB",)),
    ("examples/gpt.py", 64, ("700MiB",)),
    ("examples/cnn.py", 256, ("450MiB",)),
]
UPDATES = 8


def again(path: str, limit_bytes: int, size: int, steps: int, *, exact: bool) -> Sample:
    spec = WorkerSpec(device="cpu", workload=path, limit_bytes=limit_bytes, exact_meter=exact)
    with Worker(spec, timeout_seconds=600) as worker:
        trial = Trial(micro_batch=size, accumulation_steps=min(2, steps), updates=UPDATES)
        return worker.run(1, trial, smaller_ran=True).sample


def case(path: str, target: int, budget: str, repeats: int) -> dict[str, object]:
    report = autoaccum.probe(path, target_batch=target, memory_budget=budget, device="cpu")
    plan, limit = report.plan, report.budget
    if plan is None or limit is None:
        raise SystemExit(f"no plan for {path} in {budget}")
    plain, exact = (
        [again(path, limit.limit_bytes, plan.micro_batch, plan.accumulation_steps, exact=way) for _ in range(repeats)]
        for way in (False, True)
    )
    refused = report.bracket.smallest_failed
    beyond = [again(path, limit.limit_bytes, size, 2, exact=True) for size in [refused] * repeats if size]
    return {
        "workload": path,
        "budget": budget,
        "target_batch": target,
        "micro_batch": plan.micro_batch,
        "accumulation_steps": plan.accumulation_steps,
        "exact": plan.effective_batch == target,
        "trials": len(report.samples),
        "ooms": sum(sample.outcome is Outcome.OOM for sample in report.samples),
        "repeats": repeats,
        "ran_by_default": sum(sample.ok for sample in plain),
        "ran_with_malloc_set": sum(sample.ok for sample in exact),
        "limit_bytes": limit.limit_bytes,
        "stated_peak_bytes": plan.peak_bytes,
        "smallest_peak_by_default_bytes": min(sample.device_used_bytes or 0 for sample in plain),
        "largest_peak_by_default_bytes": max(sample.device_used_bytes or 0 for sample in plain),
        "smallest_peak_with_malloc_set_bytes": min(sample.device_used_bytes or 0 for sample in exact),
        "largest_peak_with_malloc_set_bytes": max(sample.device_used_bytes or 0 for sample in exact),
        "refused": refused,
        "refused_ran": sum(sample.ok for sample in beyond),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/plan-holds"))
    options = parser.parse_args()
    rows = []
    for path, target, budgets in CASES:
        for budget in budgets:
            rows.append(case(path, target, budget, options.repeats))
            print(rows[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(rows)
    table.to_csv(options.out / "plan-holds.csv", index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()

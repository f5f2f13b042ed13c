"""Does the choice flip between runs of a noisy workload? Real probes with the same seed, other noise in each.

The workload sleeps as long for each sample whatever the micro-batch, and every tenth sample has a pause of ten times
that, at random: no plan is faster than another, and every run looks as if some were. Writes results/tune/flips.csv.

python benchmarks/tune/flips.py [--runs 10] [--seconds 20]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

import pandas as pd

from autoaccum.pipeline import TUNE_TRIALS, run
from autoaccum.records import Request

WORKLOAD = Path(__file__).with_name("workloads") / "noisy.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0, help="of tuning, in each run")
    parser.add_argument("--out", type=Path, default=Path("results/tune"))
    options = parser.parse_args()
    rows = []
    for number in range(options.runs):
        request = Request(
            workload=str(WORKLOAD),
            target_batch=32,
            device="cpu",
            memory_budget="2GiB",
            tune_trials=TUNE_TRIALS,
            tune_seconds=options.seconds,
        )
        report, _ = run(request, out=None)
        if report.plan is None or report.tuning is None:
            raise SystemExit("no plan")
        times = [row.update_seconds for row in report.tuning.trials if row.update_seconds]
        row = {
            "run": number + 1,
            "micro_batch": report.plan.micro_batch,
            "options": json.dumps(report.plan.options),
            "trials": len(report.tuning.trials),
            "duels": len(report.tuning.duels),
            "fastest_seconds": min(times),
            "slowest_seconds": max(times),
        }
        print(row, flush=True)
        rows.append(row)
    table = pd.DataFrame(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / "flips.csv", index=False, float_format="%.4f")
    (most, count), *_ = Counter(zip(table.micro_batch, table.options, strict=True)).most_common(1)
    print(f"{len(table) - count} of {len(table)} runs differ from the choice of most: {most}")


if __name__ == "__main__":
    main()

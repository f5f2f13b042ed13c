"""How long `autoaccum --help` takes beside the import of click alone, interleaved; writes results/startup/.

python benchmarks/startup.py [--rounds 40]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pandas as pd

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import click": ["-c", "import click"],
    "import autoaccum": ["-c", "import autoaccum"],
    "autoaccum --help": ["-m", "autoaccum", "--help"],
}


def seconds(arguments: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("results/startup"))
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.rounds):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    click = median(times["import click"])
    table = pd.DataFrame(
        {
            "command": list(times),
            "median_seconds": [median(values) for values in times.values()],
            "best_seconds": [min(values) for values in times.values()],
            "times_import_click": [median(values) / click for values in times.values()],
        }
    )
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / "startup.csv", index=False, float_format="%.4f")
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()

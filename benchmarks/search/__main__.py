"""Measures the search: autoaccum, without and with a rehearsal, beside the tools that people use instead.

    python -m benchmarks.search              all of it, in the repository's root; writes results/search/
    python -m benchmarks.search --quick      a dozen cases, autoaccum alone, a line for each; writes nothing

`make bench-search` installs what it needs and runs it: a CUDA build of torch, for the virtual GPU; transformers for
models, without weights; and the peers' own packages: accelerate, pytorch-lightning, toma. No GPU is needed.

What was measured is kept in --work, and what is there is not measured again: an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from autoaccum.virtual import environment
from benchmarks.search import contests, on_cpu, oracle, ours, picture, scores, tasks
from benchmarks.search.cases import CARDS, Case, all_cases, quick_cases
from benchmarks.search.forks import Row

RESULTS = Path(__file__).resolve().parents[2] / "results" / "search"


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a dozen unlike cases, autoaccum alone, measured again")
    parser.add_argument("--models", help="only these, such as gpt2,resnet50; writes nothing")
    parser.add_argument("--again", action="store_true", help="measure autoaccum again; the rest is kept")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "bench-search"), help="what is kept")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    cases = quick_cases() if asked.quick else list(all_cases())
    if asked.models is not None:
        cases = [case for case in cases if case.model.name in asked.models.split(",")]
    bench = Bench(asked.work / "quick" if asked.quick else asked.work, asked.processes)
    best = oracle.best(bench.measure("oracle", oracle.tasks(cases), oracle.IMPORTS))
    if asked.quick or asked.again:
        bench.forget("autoaccum", "cpu")
    wanted = [ours.task(case, tool) for case in cases for tool in (ours.PLAIN, ours.REHEARSED)]
    found = {row["key"]: row for row in bench.measure("autoaccum", wanted, ours.IMPORTS)}
    if asked.quick or asked.models is not None:
        _show([_line(case, tool, best, found) for tool in (ours.PLAIN, ours.REHEARSED) for case in cases])
        return
    wanted = [contests.task(case, peer) for case in cases for peer in contests.PEERS]
    found |= {row["key"]: row for row in bench.measure("peers", wanted, contests.IMPORTS)}
    lines = [_line(case, tool, best, found) for case in cases for tool in scores.TOOLS]
    scores.write(asked.out / "virtual-gpu.csv", lines, scores.COLUMNS)
    in_all = sorted(scores.summary(lines), key=lambda line: scores.TOOLS.index(line["tool"]))
    scores.write(asked.out / "summary.csv", in_all)
    title = f"{len(cases)} cases on imagined GPUs: the price of an answer, and its worth"
    picture.draw(in_all, title, asked.out / "search.png")
    told = {row["key"]: row for row in bench.measure("errors", oracle.error_tasks(best), oracle.IMPORTS)}
    scores.write(asked.out / "rehearsal-errors.csv", oracle.errors(told))
    # One at a time: they compute.
    on_cpu_rows = Bench(asked.work, 1, on_cpu.no_gpu()).measure("cpu", on_cpu.tasks(), on_cpu.IMPORTS)
    scores.write(asked.out / "cpu.csv", on_cpu.rows({row["key"]: row for row in on_cpu_rows}), on_cpu.COLUMNS)
    for line in in_all:
        print(*(f"{key}={value}" for key, value in line.items()))


class Bench:
    """Where tasks run, and where what they gave is kept."""

    def __init__(self, work: Path, processes: int, variables: dict[str, str] | None = None) -> None:
        self._work, self._processes = work, processes
        self._variables = environment(CARDS[0].gpu) if variables is None else variables

    def measure(self, name: str, wanted: Sequence[tasks.Task], imports: Sequence[str]) -> list[Row]:
        """Give the rows of the tasks; those that are kept are not run again."""
        kept = tasks.Kept(self._work / f"{name}.jsonl")
        rows = tasks.run(wanted, kept, processes=self._processes, imports=imports, environment=self._variables)
        return [rows[task.key] for task in wanted]

    def forget(self, *names: str) -> None:
        """Have all of these measured again."""
        for name in names:
            (self._work / f"{name}.jsonl").unlink(missing_ok=True)


def _line(case: Case, tool: str, best: dict[str, Row], found: dict[str, Row]) -> Row:
    return scores.line(case, tool, best[case.name], found[f"{case.name}/{tool}"])


def _show(lines: Iterable[Row]) -> None:
    """Print a line for each, marked where it is not as it should be, and the summary."""
    lines = list(lines)
    for line in lines:
        right = line.get("steps") == line["best_steps"] and line.get("ooms", 0) <= 1
        place = f"{line['model']}/{line['gib']}GiB/{line['target']}"
        steps = f"{line.get('steps')} of {line['best_steps']} steps"
        print(f"{' ' if right else '!'} {line['tool']:21} {place:24} {steps:18} {line['tried']}  {line['error']}")
    for total in scores.summary(lines):
        print(*(f"{key}={value}" for key, value in total.items()))


if __name__ == "__main__":
    main()

"""Rows of the results, and what they come to: one line for each tool."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from benchmarks.search import contests, ours
from benchmarks.search.cases import Case
from benchmarks.search.forks import Row

TOOLS = (ours.PLAIN, ours.REHEARSED, *contests.PEERS)
COLUMNS = (
    "model", "gpu", "gib", "target", "tool", "best_size", "best_steps", "size", "steps", "effective_batch", "trials",
    "ooms", "confirming", "confirming_ooms", "optimizer_steps", "samples", "seconds", "ran", "holds", "retries",
    "certificate", "tried", "error",
)  # fmt: skip
NEARLY = 0.95  # of the largest size that fits: what counts as finding it


def line(case: Case, tool: str, best: Row, row: Row) -> Row:
    """Give the line of one tool on one case, for the CSV file."""
    size = row.get("size")
    given = {name: row[name] for name in COLUMNS if name in row}
    if tool in contests.PEERS and size is not None:
        steps = -(-case.target // size) if contests.takes_the_rest(tool) else max(1, case.target // size)
        given |= {"steps": steps, "effective_batch": contests.effective(tool, size, case.target)}
    elif size is not None:
        given["effective_batch"] = row["effective"]
    return {
        **given,
        "model": case.model.name,
        "gpu": case.card.gpu.name,
        "gib": case.gib,
        "target": case.target,
        "tool": tool,
        "best_size": best["size"],
        "best_steps": best["steps"],
        "tried": ", ".join(row.get("tried", ())),
        "error": row.get("error") or row.get("crash", ""),
    }


def summary(lines: Sequence[Row]) -> list[Row]:
    """Give a line for each tool."""
    found = []
    for tool in dict.fromkeys(each["tool"] for each in lines):
        own = [each for each in lines if each["tool"] == tool]
        answered = [each for each in own if each.get("size") is not None]
        trials, ooms = ([each.get(name, 0) for each in own] for name in ("trials", "ooms"))
        found.append({
            "tool": tool,
            "cases": len(own),
            "answers": len(answered),
            "trials": round(mean(trials), 2),
            "most_trials": max(trials),
            "ooms": round(mean(ooms), 2),
            "most_ooms": max(ooms),
            "more_than_one_oom": sum(each > 1 for each in ooms),
            "trials_and_confirming": round(mean(trials) + mean(each.get("confirming", 0) for each in own), 2),
            "ooms_and_confirming": round(mean(ooms) + mean(each.get("confirming_ooms", 0) for each in own), 2),
            "of_best_size": round(mean(min(1.0, each["size"] / each["best_size"]) for each in _possible(answered)), 3),
            "nearly_best": _share(own, _is_nearly_best),
            "nearly_best_and_holds": _share(own, lambda each: _is_nearly_best(each) and _holds(each)),
            "steps_of_best": _share(own, lambda each: each.get("steps") == each["best_steps"]),
            "target_met": _share(own, lambda each: each.get("effective_batch") == each["target"]),
            "was_run": _share(answered, lambda each: bool(each.get("ran"))),
            "holds": _share(answered, _holds),
            "samples": round(mean(each.get("samples", 0) for each in own)),
            "seconds": round(mean(each.get("seconds", 0.0) for each in own), 2),
        })  # fmt: skip
    return found


def _is_nearly_best(line: Row) -> bool:
    return (line.get("size") or 0) >= NEARLY * (line["best_size"] or 0)


def _holds(line: Row) -> bool:
    """Whether the size runs in a fresh process with accumulation, where the target asks for it."""
    return bool(line.get("holds"))


def _possible(lines: Iterable[Row]) -> list[Row]:
    return [each for each in lines if each["best_size"]]


def _share(lines: Sequence[Row], holds: Callable[[Row], bool]) -> float:
    return round(sum(map(holds, lines)) / len(lines), 3) if lines else 0.0


def write(path: Path, lines: Sequence[Mapping[str, object]], columns: Sequence[str] | None = None) -> None:
    """Write a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)

"""The truth of each case, and how wrong a rehearsal is: what is asked of the servers, and how the answers are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from autoaccum.units import GIB
from benchmarks.search.cases import CARDS, MODELS, ROOM_BYTES, Case
from benchmarks.search.forks import Row, Variables
from benchmarks.search.tasks import Task

IMPORTS = ("benchmarks.search.truth", "torch._dynamo", "language", "vision", "other")


def tasks(cases: Iterable[Case]) -> list[Task]:
    """Give a task for each model and GPU, with all targets that the cases have there."""
    ordered = sorted(cases, key=lambda case: case.place)
    grouped = [list(group) for _, group in groupby(ordered, key=lambda case: case.place)]
    return [_task(group[0], sorted({case.target for case in group})) for group in grouped]


def _task(case: Case, targets: list[int]) -> Task:
    given = {
        "spec": case.model.spec,
        "targets": targets,
        "limit_bytes": case.limit_bytes,
        "variables": case.card.of(case.gib * GIB),
        "bare": case.card.of(ROOM_BYTES, workspaces=False),
    }
    return Task(key=f"{case.place}/{'+'.join(map(str, targets))}", do="benchmarks.search.truth.on_gpu", given=given)


def best(rows: Iterable[Row]) -> dict[str, Row]:
    """Give the largest size that runs and the fewest steps of a plan that does, by the name of the case."""
    found = {}
    for row in rows:
        if "best" not in row:
            raise RuntimeError(f"the truth of {row['key']} was not found: {row.get('crash')}")
        place = row["key"].rpartition("/")[0]
        found.update({f"{place}/{target}": each for target, each in row["best"].items()})
    return found


def error_tasks(found: Mapping[str, Row]) -> list[Task]:
    """Give the tasks that find what every model reserves where there is room, on each kind of GPU and as it is told.

    At two sizes: the largest that runs on the GPU, and a quarter of it.
    """
    return [
        _curve(f"{case.place}/{name}", case, found[case.name]["size"], variables)
        for case in _largest_targets()
        for name, variables in (("real", case.card.of(ROOM_BYTES)), ("rehearsed", case.card.as_told()))
    ]


def _largest_targets() -> list[Case]:
    return [Case(model=model, kind=kind, target=max(model.targets)) for model in MODELS for kind in range(len(CARDS))]


def _curve(key: str, case: Case, best: int | None, variables: Variables) -> Task:
    sizes = sorted({(max(1, (best or 1) // 4), 2), (best or 1, 2)})
    given = {"spec": case.model.spec, "sizes": sizes, "limit_bytes": ROOM_BYTES, "enough_bytes": ROOM_BYTES}
    return Task(key=key, do="benchmarks.search.trials.peaks", given=given, variables=variables)


def errors(rows: Mapping[str, Row]) -> list[Row]:
    """Say how wrong a rehearsal is about what each model reserves, and about what is live, on each kind of GPU."""
    lines = []
    for case in _largest_targets():
        seen = (rows[f"{case.place}/{name}"]["peaks"] for name in ("real", "rehearsed"))
        for (size, _, live, real), (_, _, told_live, told) in zip(*seen, strict=True):
            lines.append({
                "model": case.model.name, "gpu": case.card.gpu.name, "gib": case.gib, "micro_batch": size,
                "rehearsed_bytes": told, "real_bytes": real, "error": round(told / real - 1, 4),
                "error_of_live_bytes": round(told_live / live - 1, 4),
            })  # fmt: skip
    return lines

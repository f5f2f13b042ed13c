"""The cases on the CPU: small models that really compute, under a hard limit of the kernel, with oneDNN on.

Everybody may take the same number of bytes beyond what the process holds before there is a model. Runs differ here, for
malloc keeps memory: a size is feasible if it ran in two of three fresh processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoaccum.units import MIB
from autoaccum.virtual import environment
from benchmarks.search import contests, ours
from benchmarks.search.cases import WORKLOADS
from benchmarks.search.forks import Row
from benchmarks.search.tasks import Task

IMPORTS = (*contests.IMPORTS, "benchmarks.search.truth", "benchmarks.search.ours", "small")
TOOLS = (ours.PLAIN, *contests.PEERS)
COLUMNS = (
    "model", "room_mib", "target", "tool", "best_size", "best_steps", "size", "steps", "trials", "ooms", "confirming",
    "optimizer_steps", "samples", "seconds", "ran", "tried", "error",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A model, a target, and the bytes that training may take."""

    model: str
    target: int
    room_mib: int

    @property
    def name(self) -> str:
        """The case in a word."""
        return f"{self.model}/{self.room_mib}MiB/{self.target}"

    @property
    def given(self) -> Row:
        """What every tool is given."""
        spec = f"{WORKLOADS / 'small'}.py:{self.model}"
        return {"spec": spec, "target": self.target, "room_bytes": self.room_mib * MIB}


CASES = (
    Case(model="mlp", target=1000, room_mib=256),
    Case(model="gpt", target=256, room_mib=512),
    Case(model="cnn", target=500, room_mib=384),
)


def no_gpu() -> dict[str, str]:
    """Give the environment in which a CUDA build of torch runs without a GPU, and without NVIDIA's libraries."""
    return environment([])


def tasks() -> list[Task]:
    """Give the tasks of all tools, and those of the truth."""
    found = []
    for case in CASES:
        found.append(Task(key=f"{case.name}/truth", do="benchmarks.search.truth.on_cpu", given=case.given))
        found.append(Task(key=f"{case.name}/{ours.PLAIN}", do="benchmarks.search.ours.on_cpu", given=case.given))
        for peer in contests.PEERS:
            given = {"peer": peer, **case.given}
            found.append(Task(key=f"{case.name}/{peer}", do="benchmarks.search.peers.on_cpu", given=given))
    return found


def rows(found: Mapping[str, Row]) -> list[Row]:
    """Give what every tool found, beside the truth."""
    lines = []
    for case in CASES:
        best = found[f"{case.name}/truth"]
        for tool in TOOLS:
            row = found[f"{case.name}/{tool}"]
            line = {name: row[name] for name in COLUMNS if name in row}
            asked = {"model": case.model, "room_mib": case.room_mib, "target": case.target, "tool": tool}
            truth = {"best_size": best["size"], "best_steps": best["steps"]}
            told = {"tried": ", ".join(row.get("tried", ())), "error": row.get("error") or row.get("crash", "")}
            lines.append({**line, **asked, **truth, **told})
    return lines

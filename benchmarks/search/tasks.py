"""Tasks for servers of forks, and a file that keeps their rows: what was interrupted goes on where it was."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.search.forks import Row

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A function of a module, what it is given, and the environment that it runs in."""

    key: str
    do: str
    given: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)


class Kept:
    """Rows by key, in memory and in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.rows: dict[str, Row] = {}
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            self.rows[row["key"]] = row

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.rows[row["key"]] = row
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def run(
    tasks: Iterable[Task], kept: Kept, *, processes: int, imports: Sequence[str], environment: Mapping[str, str]
) -> dict[str, Row]:
    """Run what is not kept yet, each process a server with these modules and environment; give all rows."""
    waiting = [task for task in tasks if task.key not in kept.rows]
    left = queue.SimpleQueue[Task]()
    for task in waiting:
        left.put(task)
    lock = threading.Lock()

    def serve(_: int) -> None:
        with kept.path.with_suffix(".log").open("a") as log, _server(imports, environment, log) as server:
            for task in _each(left):
                row = _ask(server, task)
                with lock:
                    kept.add(row)
                    done = f"{len(waiting) - left.qsize()}/{len(waiting)}"
                    print(f"{done}  {task.key}  {row['seconds']:.1f} s", flush=True)

    many = min(processes, len(waiting))
    if many:
        with ThreadPoolExecutor(many) as pool:
            list(pool.map(serve, range(many)))
    return kept.rows


def _each(left: queue.SimpleQueue[Task]) -> Iterator[Task]:
    with suppress(queue.Empty):
        while True:
            yield left.get_nowait()


def _ask(server: subprocess.Popen[str], task: Task) -> Row:
    assert server.stdin is not None and server.stdout is not None  # noqa: PT018
    server.stdin.write(json.dumps(asdict(task)) + "\n")
    server.stdin.flush()
    said = server.stdout.readline()
    if not said:
        raise RuntimeError(f"the server of {task.key} ended: see the log beside what is kept")
    row: Row = json.loads(said)
    return row


def _server(imports: Sequence[str], environment: Mapping[str, str], log: Any) -> subprocess.Popen[str]:
    # One thread: what OpenMP starts does not outlive a fork.
    chosen = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment}
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.search.forks", *imports],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=chosen,
        text=True,
    )

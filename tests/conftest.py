"""What the tests share: workload files, the command line as users run it, and a worker."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.units import MIB

LINEAR = """
    import os, sys, time, signal, torch
    from torch import nn

    def build_model():
        return nn.Linear(64, 8)

    def make_batch(size):
        return torch.randn(size, 64), torch.randint(8, (size,))
"""


def _own_environment() -> dict[str, str]:
    """The environment without what changes how a command prints."""
    terminal = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    return {name: value for name, value in os.environ.items() if name not in terminal}


WriteWorkload = Callable[..., Path]


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.out)
        return report

    @property
    def error(self) -> str:
        """The one line that a failed command prints last."""
        return self.err.strip().splitlines()[-1]


class Cli:
    """The command line, run as a real process in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *arguments: str | os.PathLike[str]) -> list[str]:
        given = [os.fspath(argument) for argument in arguments]
        if given[:1] == ["probe"] and "--tune-trials" not in given and "--resume" not in given:
            given += ["--tune-trials", "0"]  # tuning has tests of its own
        return [sys.executable, "-m", "autoaccum", *given]

    def __call__(self, *arguments: str | os.PathLike[str], **variables: str) -> Ran:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env={**_own_environment(), **variables},
            capture_output=True,
            text=True,
            timeout=170,
        )
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def fast_trials() -> Iterator[None]:
    """Have small products not wait for threads, and live trials not search all of pytest's objects for cycles."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def workload(tmp_path: Path) -> WriteWorkload:
    """Write a workload file: a linear model, with functions of the test's own added or put in their place."""

    def write(added: str = "", name: str = "model.py", base: str = LINEAR) -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(base) + textwrap.dedent(added))
        return path

    return write


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    """Start workers on the CPU that end with the test."""
    started: list[Worker] = []

    def begin(workload: Path, limit_bytes: int = 600 * MIB, timeout_seconds: float = 60.0, **more: Any) -> Worker:
        spec = WorkerSpec(device="cpu", workload=str(workload), limit_bytes=limit_bytes, **more)
        started.append(Worker(spec, timeout_seconds=timeout_seconds))
        return started[-1]

    yield begin
    for worker in started:
        worker.kill()

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from autoaccum import virtual
from autoaccum.errors import DeviceError
from autoaccum.virtual import VirtualGpu, wheel

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
GPU = VirtualGpu(total_bytes=8 * GIB)
PRELUDE = """
import json, os, torch, torch.nn as nn, torch.nn.functional as F
MIB, GIB = 1 << 20, 1 << 30

def report(**values):
    print(json.dumps(values))

def gpu_bytes(size):
    return torch.empty(int(size), dtype=torch.uint8, device="cuda")

def runs_out(size):
    try:
        gpu_bytes(size)
    except torch.OutOfMemoryError:
        return True
    return False
"""


class Run(Protocol):
    """Runs Python in a child on the virtual GPU and gives what it reported."""

    def __call__(
        self, code: str, gpu: VirtualGpu | Sequence[VirtualGpu] = ..., env: dict[str, str] = ...
    ) -> dict[str, Any]: ...


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOACCUM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def cuda_torch() -> None:
    try:
        wheel.find()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture
def run(cuda_torch: None, tmp_path: Path) -> Run:
    def run_in_child(
        code: str,
        gpu: VirtualGpu | Sequence[VirtualGpu] = GPU,
        env: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        child = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PRELUDE + textwrap.dedent(code)],
            env={**os.environ, **virtual.environment(gpu), "PYTHONPATH": str(ROOT), **(env or {})},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert child.returncode == 0, f"exit code {child.returncode}\n{child.stderr[-3000:]}"
        lines = child.stdout.splitlines()
        reported: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        return reported

    return run_in_child

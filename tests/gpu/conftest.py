"""What the tests on a GPU share: devices that are described, not bought, and workers on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from autoaccum import virtual
from autoaccum.errors import DeviceError
from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.virtual import VirtualGpu, wheel

WORKLOADS = Path(__file__).parent / "workloads"
SEGMENT_BYTES = 2 << 20  # what torch's allocator asks the driver for is a multiple of it

# 16 MiB for each sample and tensor, of which a step keeps three and a backward pass adds more.
WIDE = """
    import os, pathlib, torch
    from torch import nn
    from autoaccum.virtual import control

    HERE = pathlib.Path(__file__).parent

    def build_model():
        return nn.Linear(1, 1)

    def make_batch(size):
        return torch.zeros(size, 1)

    def forward(model, batch):
        return (model(batch) * torch.zeros(len(batch), 4 << 20, device=batch.device)).exp().mean()

    def loss(model, batch):
        return forward(model, batch)

    def processes():
        "How many processes have loaded this file so far, this one included."
        return len((HERE / "processes").read_text())

    with (HERE / "processes").open("a") as marks:
        marks.write("x")
"""

Rig = Callable[..., dict[str, str]]
StartWorker = Callable[..., Worker]


@pytest.fixture(scope="session", autouse=True)
def _build_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have the virtual GPU built once, and not into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOACCUM_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("AUTOACCUM_NO_REHEARSE", "1")  # a rehearsal before each probe has tests of its own
        yield


@pytest.fixture(scope="session", autouse=True)
def _cuda_torch() -> None:
    try:
        wheel.find()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def real_gpu() -> str | None:
    """Say why there is no real GPU, if there is none."""
    if shutil.which("nvidia-smi") is None:
        return "this machine has no NVIDIA driver"
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    seen = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=120)
    return "torch finds no GPU on this machine" if seen.returncode else None


@pytest.fixture(params=["virtual:4GiB", "cuda"])
def any_gpu(request: pytest.FixtureRequest, real_gpu: str | None) -> str:
    """The name of a GPU: a virtual one, then the machine's own."""
    if request.param == "cuda" and real_gpu is not None:
        pytest.skip(real_gpu)
    return str(request.param)


@pytest.fixture
def rig() -> Rig:
    """Give the variables that make virtual GPUs the machine's own, so that they are called "cuda:N"."""

    def describe(gpus: VirtualGpu | Sequence[VirtualGpu], **variables: str) -> dict[str, str]:
        return {**virtual.environment(gpus), **variables}

    return describe


@pytest.fixture
def start_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartWorker]:
    """Start workers that end with the test."""
    started: list[Worker] = []

    def begin(
        device: str, workload: Path, limit_bytes: int | None = None, environment: dict[str, str] | None = None
    ) -> Worker:
        spec = WorkerSpec(device=device, workload=os.fspath(workload), limit_bytes=limit_bytes)
        with monkeypatch.context() as patch:
            for name, value in (environment or {}).items():
                patch.setenv(name, value)
            started.append(Worker(spec, timeout_seconds=60.0))
        return started[-1]

    yield begin
    for worker in started:
        worker.close()

"""Running out of memory on a GPU, at every stage and at every allocation: a sample each time, then on as before."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.records import Outcome, Sample, Trial

from .conftest import SEGMENT_BYTES

pytestmark = pytest.mark.gpu

# The test writes what is to happen into a file; what the device holds when a trial begins goes into another.
STAGES = """
    import pathlib, torch
    from torch import nn
    from autoaccum.virtual import control

    HERE = pathlib.Path(__file__).parent

    def too_much():
        torch.empty(8 << 30, dtype=torch.uint8, device="cuda")

    def stage():
        return (HERE / "stage").read_text()

    def build_model():
        return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))

    def make_batch(size):
        (HERE / "used").write_text(str(control.used_bytes()))
        return torch.zeros(1).expand(size, 1 << 31) if stage() == "transfer" else torch.zeros(size, 1024, 1024)

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            too_much()

    class Step(torch.optim.AdamW):
        def step(self):
            super().step()
            if stage() == "step": too_much()

    def build_optimizer(model):
        return Step(model.parameters())

    def loss(model, batch):
        result = model(batch).mean()
        if stage() == "forward": too_much()
        return Backward.apply(result) if stage() == "backward" else result
"""
# Each of 240 results has 32 MiB, and with it a segment of its own: as many driver allocations, and their gradients'.
SEGMENTS = """
    import pathlib, torch
    from torch import nn
    from autoaccum.virtual import control

    HERE = pathlib.Path(__file__).parent
    ROOM = 32 << 20

    def build_model():
        return nn.Linear(1, 1)

    def make_batch(size):
        control.set_other_bytes(0)
        way, number = (HERE / "injection").read_text().split()
        if way == "fail": control.fail_after(int(number))
        if way == "fill": control.set_other_bytes((16 << 30) - control.used_bytes() - int(number) * ROOM)
        return torch.zeros(size, 1)

    def loss(model, batch):
        x = model(batch).mean() * torch.zeros(8 << 20, device=batch.device)
        for _ in range(240):
            x = x.exp()
        return x.mean()
"""


def worker_for(base: str, folder: Path, device: str) -> Worker:
    (folder / "model.py").write_text(textwrap.dedent(base))
    return Worker(WorkerSpec(device=device, workload=str(folder / "model.py")), timeout_seconds=60.0)


class Staged:
    """A worker that was told at which stage to run out of memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worker = worker_for(STAGES, folder, "virtual:2GiB")

    def run(self, stage: str) -> tuple[Sample, int]:
        """Give the trial's sample, and what the device held when it began."""
        (self.folder / "stage").write_text(stage)
        sample = self.worker.run(1, Trial(micro_batch=4), smaller_ran=True).sample
        return sample, int((self.folder / "used").read_text())


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Staged]:
    staged = Staged(tmp_path_factory.mktemp("stages"))
    yield staged
    staged.worker.close()


@pytest.mark.parametrize(
    ("stage", "named"),
    [
        ("transfer", "the batch's move to the device"),
        ("forward", "the forward pass"),
        ("backward", "the backward pass"),
        ("step", "the optimizer's step"),
    ],
)
def test_an_out_of_memory_names_its_stage_and_leaves_the_memory_as_it_was(
    stage: str, named: str, staged: Staged
) -> None:
    staged.run("forward")  # from here on there is a model and no optimizer, as after every failure
    before, held_before = staged.run("none")

    failed, _ = staged.run(stage)
    after, held_after = staged.run("none")

    assert failed.outcome is Outcome.OOM
    assert failed.message.startswith(f"out of memory in {named}: OutOfMemoryError: CUDA out of memory")
    assert (before.outcome, after.outcome) == (Outcome.OK, Outcome.OK)
    assert held_after <= held_before + SEGMENT_BYTES
    assert abs((after.device_used_bytes or 0) - (before.device_used_bytes or 0)) <= SEGMENT_BYTES
    assert staged.worker.alive


# One failed call is retried by torch after it emptied its cache; a full device stays full.
@pytest.mark.parametrize(
    ("way", "numbers", "outcome"), [("fail", range(200), Outcome.OK), ("fill", range(0, 200, 5), Outcome.OOM)]
)
def test_a_failure_at_any_of_200_driver_allocations_is_absorbed_or_an_out_of_memory(
    way: str, numbers: range, outcome: Outcome, tmp_path: Path
) -> None:
    with worker_for(SEGMENTS, tmp_path, "virtual:16GiB") as worker:

        def run(injection: str) -> Sample:
            (tmp_path / "injection").write_text(injection)
            trial = Trial(micro_batch=1, accumulation_steps=1, updates=1)
            return worker.run(1, trial, smaller_ran=True).sample

        untouched = run("none 0")
        injected = [run(f"{way} {number}") for number in numbers]
        afterwards = run("none 0")

        assert [sample.outcome for sample in injected] == [outcome] * len(numbers)
        assert (untouched.outcome, afterwards.outcome) == (Outcome.OK, Outcome.OK)
        assert afterwards.device_used_bytes == untouched.device_used_bytes
        assert all((sample.alloc_retries or 0) >= 1 for sample in injected)
        assert worker.alive

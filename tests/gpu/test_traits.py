"""What one update computes and reads, as the worker observes it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoaccum.anatomy.traits import KINDS, HostRead, Traits
from autoaccum.errors import NothingFits, WorkloadError
from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.records import Trial
from tests.conftest import WriteWorkload

from .conftest import WIDE, StartWorker

pytestmark = pytest.mark.gpu

MIXED = """
    import sys, pathlib, torch
    from torch import nn
    from torch.nn import functional as F

    sys.path.append(str(pathlib.Path(__file__).parent / "site-packages"))
    from library import Careful, entropy

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense, self.depthwise = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
            self.pointwise, self.transposed = nn.Conv2d(8, 16, 1), nn.ConvTranspose2d(16, 4, 2, stride=2)
            self.recurrent = nn.LSTM(16, 32, 2, bidirectional=True, batch_first=True)
            self.linear = nn.Linear(64, 64)

        def forward(self, images):
            x = self.pointwise(self.depthwise(self.dense(images)))
            wide = self.transposed(x).mean()
            x = self.recurrent(x.flatten(2).transpose(1, 2))[0]
            heads = self.linear(x).unflatten(-1, (4, 16)).transpose(1, 2)
            x = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
            if x.sum() > 0:  # item
                x = -x
            x[:, :, x.mean((0, 1)) > 0]  # boolean mask
            x[0].nonzero()  # nonzero
            with torch.inference_mode():
                self.linear(x.detach())
            return x.mean((1, 2)) + wide

    class Backwards(torch.autograd.Function):
        def forward(ctx, x):
            return x * 1

        def backward(ctx, gradient):
            gradient.tolist()  # cpu
            return gradient

    def build_model():
        return Net()

    def build_optimizer(model):
        return Careful(model.parameters())

    def make_batch(size):
        return torch.randn(size, 3, 8, 8)

    def loss(model, batch):
        torch.backends.cudnn.benchmark = True
        value = entropy(Backwards.apply(model(batch)))  # on its behalf
        for _ in range(3):
            value.item()  # logged
        batch.cpu().sum().item()  # moved
        return value
"""
LIBRARY = """
    import torch

    class Careful(torch.optim.SGD):
        def step(self):
            self.param_groups[0]["params"][0].grad.norm().item()  # steps
            super().step()

    def entropy(x):
        assert not x.isnan().any()  # asserts
        return x.mean()
"""
WRAPPED = """
    import pathlib, torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    HERE = pathlib.Path(__file__).parent

    def counting(graph, inputs):
        def run(*given):
            (HERE / "compiled").touch()
            return graph(*given)
        return run

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.compiled = torch.compile(nn.Linear(16, 16), backend=counting)
            self.inner = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
            self.ragged = nn.Linear(16, 16)

        def forward(self, x):
            x = checkpoint(self.inner, self.compiled(x), use_reentrant=False)
            rows = torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 1, len(x)], device=x.device))
            return self.ragged(rows).values().mean()

    def build_model():
        return Net()

    def make_batch(size):
        if size == 13:
            raise ValueError("unlucky")
        return torch.randn(size, 16)

    def loss(model, batch):
        return model(batch)
"""


def write(folder: Path, code: str, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path


def line_of(path: Path, mark: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith(f"# {mark}"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    write(folder, LIBRARY, "site-packages/library.py")
    return write(folder, MIXED, "model.py")


@pytest.fixture(scope="module")
def worker(mixed: Path) -> Iterator[Worker]:
    with Worker(WorkerSpec(device="virtual:4GiB", workload=str(mixed)), timeout_seconds=60.0) as worker:
        yield worker


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Path]]:
    path = write(tmp_path_factory.mktemp("wrapped"), WRAPPED, "model.py")
    with Worker(WorkerSpec(device="virtual:4GiB", workload=str(path)), timeout_seconds=60.0) as worker:
        yield worker, path.parent


@pytest.fixture(scope="module")
def traits(worker: Worker) -> Traits:
    return worker.traits(2)


def test_operations_are_counted_by_kind_in_both_passes(traits: Traits) -> None:
    pixels, matrices = 2 * 64, 2 * 4 * 32 * (16 + 32) + 2 * 4 * 32 * (64 + 32)  # of both directions, of each layer

    assert traits.flops == {
        "matmul": 2 * pixels * 64 * 64 * 4,  # forward, two gradients, and the forward pass in inference mode
        "attention": 2 * (2 * 4) * 64 * 64 * 16 * 7,  # two products forward, five backward
        "dense_convolution": 2 * pixels * 9 * 3 * 8 * 2 + 2 * pixels * 4 * 16 * 4 * 3,  # images get no gradient
        "other_convolution": 2 * pixels * 9 * 8 * 3 + 2 * pixels * 8 * 16 * 3,
        "recurrent": 2 * pixels * matrices * 3,
    }
    assert tuple(traits.flops) == KINDS


def test_operations_grow_with_the_micro_batch(traits: Traits, worker: Worker) -> None:
    twice = worker.traits(4)

    assert twice.flops == {kind: 2 * count for kind, count in traits.flops.items()}


def test_every_place_that_reads_what_was_computed_is_named_in_order(traits: Traits, mixed: Path) -> None:
    library = mixed.parent / "site-packages" / "library.py"
    marks = ("item", "boolean mask", "nonzero", "on its behalf", "logged", "moved", "cpu")
    at = {mark: f"{mixed}:{line_of(mixed, mark)}" for mark in marks}
    asserts, steps = line_of(library, "asserts"), line_of(library, "steps")

    assert traits.host_reads == (
        HostRead(place=f"{at['item']} in forward", operation="item", count=1),
        HostRead(place=f"{at['boolean mask']} in forward", operation="boolean mask", count=1),
        HostRead(place=f"{at['nonzero']} in forward", operation="nonzero", count=1),
        HostRead(
            place=f"{at['on its behalf']} in loss",
            operation="item",
            count=1,
            library=f"library.py:{asserts} in entropy",
        ),
        HostRead(place=f"{at['logged']} in loss", operation="item", count=3),
        HostRead(place=f"{at['moved']} in loss", operation="cpu", count=1),
        HostRead(place=f"{at['cpu']} in backward", operation="cpu", count=1),
        HostRead(place=f"library.py:{steps} in step", operation="item", count=1),
    )


def test_settings_and_parameters_are_as_the_pass_left_them(traits: Traits) -> None:
    recurrent = 2 * 4 * 32 * (16 + 32 + 2) + 2 * 4 * 32 * (64 + 32 + 2)
    others = 3 * 8 * 9 + 8 + 8 * 9 + 8 + 8 * 16 + 16 + 16 * 4 * 4 + 4 + 64 * 64 + 64

    assert traits.cudnn_benchmark
    assert traits.parameter_bytes == 4 * (recurrent + others)


def test_a_trial_is_the_same_after_it(worker: Worker) -> None:
    before = worker.run(0, Trial(micro_batch=8), smaller_ran=False).sample

    worker.traits(8)

    assert worker.run(0, Trial(micro_batch=8), smaller_ran=False).sample == before


def test_compiled_checkpointed_and_nested_parts_are_seen_through(wrapped: tuple[Worker, Path]) -> None:
    worker, _ = wrapped

    traits = worker.traits(6)

    linear = 2 * 6 * 16 * 16
    once_more = linear  # a checkpoint computes again what it needs: here the first layer of two
    assert traits.flops["matmul"] == 2 * linear + (6 * linear + once_more) + 3 * linear  # a batch gets no gradient
    assert traits.host_reads == ()


def test_a_compiled_model_is_compiled_before_it_and_after_it(wrapped: tuple[Worker, Path]) -> None:
    worker, folder = wrapped
    mark = folder / "compiled"
    seen = []

    for _ in range(2):
        assert worker.run(0, Trial(micro_batch=6), smaller_ran=False).sample.ok
        seen.append(mark.exists())
        mark.unlink()
        worker.traits(6)
        seen.append(mark.exists())

    assert seen == [True, False, True, False]


def test_what_the_workload_raises_is_raised_with_its_place(wrapped: tuple[Worker, Path]) -> None:
    worker, folder = wrapped

    with pytest.raises(WorkloadError, match=rf"^{folder}/model.py:\d+ in make_batch: ValueError: unlucky"):
        worker.traits(13)


def test_a_size_that_does_not_fit_is_said_not_to(start_on: StartWorker, workload: WriteWorkload) -> None:
    worker = start_on("virtual:1GiB", workload(base=WIDE))

    with pytest.raises(NothingFits, match=r"^micro-batch 64 does not fit: out of memory in the forward pass"):
        worker.traits(64)

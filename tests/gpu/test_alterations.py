"""What-if variants of a workload, in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autoaccum.isolate import Answer, Worker, WorkerSpec
from autoaccum.records import Trial
from tests.conftest import WriteWorkload

pytestmark = pytest.mark.gpu

TOKENS, WIDTH, CLASSES = 1024, 16, 8192
LOGITS = TOKENS * CLASSES  # of one sample
SAMPLE = TOKENS * (4 * WIDTH + 8)  # the bytes of a sample and its targets
WAYS = ("imported", "layer", "dimensions", "unreduced")  # by the size of the batch, from 1 on; the rest are in bf16
LOSSES = f"""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    def build_model():
        return nn.Linear({WIDTH}, {CLASSES}, bias=False)

    def make_batch(size):
        return torch.randn(size, {TOKENS}, {WIDTH}), torch.randint({CLASSES}, (size, {TOKENS}))

    def imported(logits, targets):
        return cross_entropy(logits.flatten(0, 1), targets.flatten())

    def layer(logits, targets):
        weight = torch.ones({CLASSES}, device=logits.device)
        entropy = nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1, ignore_index=5)
        return entropy(logits.flatten(0, 1), targets.flatten())

    def dimensions(logits, targets):
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="sum")

    def unreduced(logits, targets):
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").mean()

    def loss(model, batch):
        inputs, targets = batch
        if len(inputs) > {len(WAYS)}:
            with torch.autocast("cuda", torch.bfloat16):
                return imported(model(inputs), targets)
        return {{1: imported, 2: layer, 3: dimensions, 4: unreduced}}[len(inputs)](model(inputs), targets)
"""
IDLE = """
    def build_optimizer(model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model, batch):
        return nn.functional.nll_loss(model(batch[0]).log_softmax(1), batch[1])
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("alterations") / "losses.py"
    path.write_text("\n".join(line[4:] for line in LOSSES.splitlines()))
    return path


def worker_with(path: Path, *alterations: str) -> Worker:
    spec = WorkerSpec(device="virtual:4GiB", workload=str(path), alterations=alterations)
    return Worker(spec, timeout_seconds=60.0)


@pytest.fixture(scope="module")
def plain(path: Path) -> Iterator[Worker]:
    with worker_with(path) as worker:
        yield worker


@pytest.fixture(scope="module")
def fused(path: Path) -> Iterator[Worker]:
    with worker_with(path, "fused_loss") as worker:
        yield worker


def answer_of(worker: Worker, size: int) -> Answer:
    answer = worker.run(0, Trial(micro_batch=size), smaller_ran=False)
    assert answer.sample.ok, answer.sample.message
    return answer


def peak(worker: Worker, size: int) -> int:
    return answer_of(worker, size).sample.peak_allocated_bytes or 0


@pytest.mark.parametrize("way", WAYS[1:])
def test_a_fused_loss_holds_the_logits_and_nothing_else_of_their_size(way: str, fused: Worker) -> None:
    size = WAYS.index(way) + 1

    assert peak(fused, size) - peak(fused, 1) == (size - 1) * (4 * LOGITS + SAMPLE)


def test_a_fused_loss_under_autocast_holds_the_logits_in_bf16(fused: Worker) -> None:
    rounded = TOKENS * 2 * WIDTH  # the sample, once more

    assert peak(fused, 6) - peak(fused, 5) == 2 * LOGITS + SAMPLE + rounded


def test_an_ordinary_loss_holds_three_copies_of_the_logits(plain: Worker, fused: Worker) -> None:
    ordinary, without = (peak(worker, 3) - peak(worker, 1) for worker in (plain, fused))

    assert ordinary - without == 2 * (2 * 4 * LOGITS)


def test_sgd_saves_exactly_the_optimizer_s_state(path: Path, plain: Worker) -> None:
    with worker_with(path, "sgd") as worker:
        answer = answer_of(worker, 1)

    before = answer_of(plain, 1).model
    assert answer.model is not None
    assert before is not None
    assert (before.optimizer, answer.model.optimizer) == ("AdamW", "SGD")
    assert answer.model.optimizer_state_bytes is None
    assert peak(plain, 1) - (answer.sample.peak_allocated_bytes or 0) == 2 * before.parameter_bytes


def test_alterations_that_change_nothing_are_named_with_the_reason(workload: WriteWorkload) -> None:
    with worker_with(workload(IDLE), "sgd", "fused_loss") as worker:
        before = worker.unsupported() or {}
        answer_of(worker, 2)
        after = worker.unsupported() or {}

    assert before.keys() & {"sgd", "fused_loss"} == {"sgd"}  # of the loss nothing is known yet
    assert after["sgd"] == "the optimizer is SGD without momentum already"
    assert after["fused_loss"] == "the loss does not call cross_entropy with the indices of classes"


def test_alterations_that_change_something_are_not_named(fused: Worker) -> None:
    answer_of(fused, 1)

    assert "fused_loss" not in (fused.unsupported() or {})

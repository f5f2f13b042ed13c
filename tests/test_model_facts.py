"""What is known of the user's model and its optimizer, whatever becomes of the trials."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autoaccum.isolate import WorkerSpec
from autoaccum.lab import WorkerLab
from autoaccum.parts import Parts, model_info
from autoaccum.records import Outcome, Trial
from autoaccum.watching import Silent
from tests.conftest import Cli, WriteWorkload

WEIGHTS = 4 * 64 * 64  # bytes
Build = Callable[[Any], torch.optim.Optimizer]


def parts(build: Build) -> Parts:
    model = nn.Linear(64, 64, bias=False)
    optimizers = (build(model.parameters()),)
    return Parts(
        model=model, optimizers=optimizers, make_batch=lambda size: torch.ones(size, 64), loss=lambda m, b: m(b)
    )


def update(made: Parts) -> None:
    made.model(torch.ones(2, 64)).sum().backward()
    made.optimizers[0].step()


@pytest.mark.parametrize(
    ("build", "state_bytes"),
    [
        (lambda p: torch.optim.SGD(p, 0.1), None),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), WEIGHTS),
        (lambda p: torch.optim.AdamW(p), 2 * WEIGHTS + 4),  # and the number of its steps
        (lambda p: torch.optim.AdamW(p, amsgrad=True), 3 * WEIGHTS + 4),
    ],
)
def test_the_optimizers_state_is_known_after_an_update(build: Build, state_bytes: int | None) -> None:
    made = parts(build)

    before = model_info(made).optimizer_state_bytes
    update(made)

    assert before is None
    assert model_info(made).optimizer_state_bytes == state_bytes


def test_looking_at_an_optimizer_leaves_it_as_it_is() -> None:
    made = parts(torch.optim.AdamW)

    model_info(made)

    assert dict(made.optimizers[0].state) == {}


@pytest.mark.parametrize("state", [None, [], {"a": 1}, {"a": {"b": "text", "c": None}}])
def test_an_optimizer_of_ones_own_kind_has_no_state_that_is_known(state: Any) -> None:
    made = parts(torch.optim.AdamW)
    made.optimizers[0].state = state

    assert model_info(made).optimizer_state_bytes is None


def test_buffers_count_apart_from_parameters() -> None:
    norm = nn.BatchNorm1d(64)
    made = Parts(model=norm, optimizers=(torch.optim.SGD(norm.parameters(), 0.1),), make_batch=int, loss=max)

    found = model_info(made)

    assert (found.parameter_bytes, found.buffer_bytes) == (2 * 64 * 4, 2 * 64 * 4 + 8)  # two means, and a count


def test_the_state_stays_known_after_trials_that_run_out_of_memory(workload: WriteWorkload) -> None:
    path = workload("""
        def build_optimizer(model): return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        def loss(model, batch):
            if len(batch[0]) > 2: raise MemoryError
            return model(batch[0]).mean()
    """)
    state_bytes = 4 * (64 * 8 + 8)
    spec = WorkerSpec(device="cpu", workload=str(path), memory_budget="600MiB")

    with WorkerLab(spec, timeout_seconds=60, watcher=Silent()) as lab:
        lab.open()
        known = []
        # In a process that has run updates, in one that has not, and after a new start of the first.
        for trial in (Trial(micro_batch=2), Trial(micro_batch=4), Trial(micro_batch=4, fresh=True)):
            lab.run(trial)
            known.append(None if lab.model is None else lab.model.optimizer_state_bytes)

    assert [sample.outcome for sample in lab.samples] == [Outcome.OK, Outcome.OOM, Outcome.OOM]
    assert known == [state_bytes] * 3


def test_the_model_is_known_where_nothing_fits(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("def loss(model, batch): raise MemoryError")

    ran = cli("probe", path, "--target-batch", "4", "--device", "cpu", "--json", "-q")

    assert ran.code == 3
    model = json.loads(ran.out)["model"]
    assert (model["name"], model["parameter_bytes"], model["optimizer"]) == ("Linear", 4 * (64 * 8 + 8), "AdamW")
    assert model["optimizer_state_bytes"] is None

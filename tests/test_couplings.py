"""The cheap signs after a search: warned of where it matters, silent everywhere else."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import autoaccum
from autoaccum.device import open_device
from autoaccum.equivalence.couplings import batch_norms, warnings_for
from autoaccum.isolate import Worker
from autoaccum.records import Trial
from tests.conftest import WriteWorkload
from tests.test_equivalence import by_class, classes, cross_entropy, info_nce, mlp, total

CONTRASTIVE = """
    def loss(model, batch):
        z = nn.functional.normalize(model(batch[0]), dim=1)
        return nn.functional.cross_entropy(z @ z.T, torch.arange(len(z)))
"""

NO_MORE_THAN_8 = """
    make_any_batch = make_batch
    def make_batch(size):
        if size > 8: raise MemoryError
        return make_any_batch(size)
"""


def warned(model: nn.Module, loss: Callable[..., Any], make_batch: Any = classes, largest_ok: int = 5) -> str:
    torch.manual_seed(0)
    return " ".join(warnings_for(model, loss, make_batch, open_device("cpu"), largest_ok))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mean_is_passed_over_in_any_precision(dtype: torch.dtype) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0].to(dtype)).float(), batch[1])

    assert warned(mlp(nn.Dropout()).to(dtype), loss) == ""


def test_a_sum_with_its_count_is_passed_over() -> None:
    assert warned(mlp(), lambda m, b: (total(m, b), len(b[1]))) == ""


def test_coupled_samples_are_warned_of() -> None:
    assert "not a sum over its samples" in warned(mlp(), info_nce)
    assert "`autoaccum verify FILE`" in warned(mlp(), info_nce)


@pytest.mark.parametrize("loss", [by_class, total])
def test_a_hidden_count_is_warned_of(loss: Any) -> None:
    assert "return (loss_sum, count)" in warned(mlp(), loss)


def test_batch_norms_are_named_and_counted_unless_frozen() -> None:
    model = mlp(nn.BatchNorm1d(8), nn.BatchNorm1d(8))

    assert batch_norms(model)[0].startswith("layer 1 (BatchNorm1d) and 1 more normalise over one micro-batch")
    assert batch_norms(mlp(nn.BatchNorm1d(8)))[0].startswith("layer 1 (BatchNorm1d) normalises")
    assert batch_norms(model.eval()) == []
    assert batch_norms(mlp(nn.LayerNorm(8))) == []


def test_fewer_rows_than_it_takes_are_not_tried() -> None:
    assert warned(mlp(), info_nce, largest_ok=4) == ""


def test_what_raises_is_no_warning() -> None:
    def broken(size: int) -> Any:
        raise IndexError("the data set has 4 rows")

    assert warned(mlp(), info_nce, broken) == ""
    assert warned(mlp(), lambda m, b: 1 / 0) == ""


def test_the_model_is_left_as_it_was() -> None:
    model = mlp(nn.Dropout())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.manual_seed(0).get_state()

    warnings_for(model, cross_entropy, classes, open_device("cpu"), 5)

    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_worker_gives_them_and_goes_on(start: Callable[..., Worker], workload: WriteWorkload) -> None:
    worker = start(workload(CONTRASTIVE))

    found = worker.couplings(largest_ok=8)

    assert len(found) == 1
    assert "not a sum over its samples" in found[0]
    assert worker.run(1, Trial(micro_batch=4), smaller_ran=False).sample.ok


def test_a_worker_that_dies_of_them_gives_none(start: Callable[..., Worker], workload: WriteWorkload) -> None:
    assert start(workload("def build_model(): os._exit(3)")).couplings(largest_ok=8) == ()
    assert start(workload("def build_model(): sys.exit(3)")).couplings(largest_ok=8) == ()


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (CONTRASTIVE, "not a sum over its samples"),
        ("def build_model(): return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8))", "layer 1 (BatchNorm1d)"),
        (
            """
            def build_model(): return nn.Linear(64, 8).to(torch.bfloat16)
            def make_batch(size): return torch.randn(size, 64).to(torch.bfloat16), torch.randint(8, (size,))
            """,
            "gradients are added up in bfloat16 over 4 micro-steps",
        ),
    ],
)
def test_a_probe_puts_them_into_the_report(added: str, words: str, workload: WriteWorkload) -> None:
    path = workload(textwrap.dedent(added) + textwrap.dedent(NO_MORE_THAN_8))

    report = autoaccum.probe(path, target_batch=32, device="cpu", tune_trials=0)

    assert report.plan is not None
    assert report.plan.accumulation_steps == 4
    assert any(words in warning for warning in report.warnings), report.warnings


def test_a_plan_of_one_step_is_not_warned_of(workload: WriteWorkload) -> None:
    report = autoaccum.probe(workload(CONTRASTIVE), target_batch=8, device="cpu", tune_trials=0)

    assert report.plan is not None
    assert report.plan.accumulation_steps == 1
    assert report.warnings == ()


def test_live_objects_are_looked_at_too() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch[0]) > 8:
            raise MemoryError
        return cross_entropy(model, batch)

    model = nn.Sequential(mlp(), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    with pytest.warns(autoaccum.AutoaccumWarning, match=r"layer 1 \(BatchNorm1d\) normalises over one micro-batch"):
        plan = autoaccum.plan(model, loss, classes, optimizer=optimizer, target_batch=32)

    assert plan.accumulation_steps == 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

"""What-if variants of a workload: what they keep, and where they are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autoaccum.alterations import ALTERATIONS, check
from autoaccum.alterations.apply import Altered
from autoaccum.errors import UsageError
from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.workload import Workload
from tests.conftest import WriteWorkload


def altered_optimizer(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, dict[str, str]]:
    workload = Workload(build_model=nn.Module, make_batch=torch.zeros, build_optimizer=lambda _: optimizer)
    altered = Altered(workload, ["sgd"])
    built: torch.optim.Optimizer = altered.workload().build_optimizer(nn.Module())
    return built, altered.idle()


def parameters(count: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(2)) for _ in range(count)]


def test_sgd_takes_over_the_groups_with_what_it_knows_of_their_options() -> None:
    first, second = parameters(2), parameters(1)
    original = torch.optim.AdamW(
        [{"params": first, "lr": 0.5}, {"params": second, "weight_decay": 0.0}], lr=0.1, foreach=True
    )

    built, idle = altered_optimizer(original)

    kept = ("params", "lr", "weight_decay", "momentum", "foreach")
    assert type(built) is torch.optim.SGD
    assert [{key: group[key] for key in kept} for group in built.param_groups] == [
        {"params": first, "lr": 0.5, "weight_decay": 0.01, "momentum": 0, "foreach": True},
        {"params": second, "lr": 0.1, "weight_decay": 0.0, "momentum": 0, "foreach": True},
    ]
    assert idle == {}


def test_sgd_with_momentum_is_altered() -> None:
    built, idle = altered_optimizer(torch.optim.SGD(parameters(1), momentum=0.9))

    assert built.param_groups[0]["momentum"] == 0
    assert idle == {}


def test_sgd_without_momentum_is_left_and_said_to_be_there_already() -> None:
    original = torch.optim.SGD(parameters(1))

    built, idle = altered_optimizer(original)

    assert built is original
    assert idle == {"sgd": "the optimizer is SGD without momentum already"}


def test_an_unknown_alteration_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r'^unknown alteration "fusedloss": did you mean fused_loss\? known are sgd, fused_loss$'
    ):
        check(["fusedloss"], "virtual")


def test_every_alteration_is_allowed_on_a_virtual_gpu() -> None:
    check(ALTERATIONS, "virtual")


def test_a_worker_refuses_a_fused_loss_where_values_matter(workload: WriteWorkload) -> None:
    spec = WorkerSpec(device="cpu", workload=str(workload()), alterations=("fused_loss",))

    with pytest.raises(UsageError, match="it needs a virtual GPU"):
        Worker(spec, timeout_seconds=60.0)

"""Probing live objects: the plan, the errors, and that nothing is left of it."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autoaccum
from autoaccum.device.meter import LiveBytes
from autoaccum.live.state import Snapshot
from autoaccum.units import MIB
from autoaccum.workload import default_loss

from .everything import Restless, Subject, loss

pytestmark = [
    pytest.mark.usefixtures("fast_trials"),
    pytest.mark.filterwarnings("ignore:batches were made by repeating"),
    pytest.mark.filterwarnings("ignore:layer norm .BatchNorm1d. normalises"),
]


class Seen:
    """What a spy saw: a list in the loss would be put back to what it was before the probe."""

    def __init__(self) -> None:
        self.list: list[Any] = []


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def plan(subject: Subject, own_loss: Any = loss, room_bytes: int | None = None, **more: Any) -> autoaccum.Plan:
    budget = None if room_bytes is None else resident_bytes() + room_bytes
    given: dict[str, Any] = {"optimizer": subject.optimizer, "target_batch": 8, "memory_budget": budget, **more}
    return autoaccum.plan(subject.model, own_loss, subject.batch, **given)


class Raising(torch.autograd.Function):
    """Raises in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, error: BaseException) -> torch.Tensor:
        ctx.error = error
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise ctx.error


def in_forward(error: BaseException | int, at: int, model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss that raises, or is hit by a signal, once batches have so many rows."""
    value = loss(model, batch)
    if len(batch[0]) >= at:
        if isinstance(error, BaseException):
            raise error
        os.kill(os.getpid(), error)
    return value


def in_backward(error: BaseException, at: int, model: nn.Module, batch: Any) -> torch.Tensor:
    value = loss(model, batch)
    return Raising.apply(value, error) if len(batch[0]) >= at else value  # type: ignore[no-untyped-call]


# What remains


@pytest.mark.parametrize("trained", [True, False], ids=["in the middle of training", "before training"])
def test_everything_is_as_before(trained: bool) -> None:
    subject = Subject(trained=trained)
    before = subject.everything

    found = plan(subject)

    assert found.effective_batch == 8
    assert subject.everything == before


def with_a_cliff(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss that from 200 rows on takes far more than one can know from smaller batches."""
    taken = torch.zeros(64 * MIB, dtype=torch.uint8) if len(batch[0]) >= 200 else torch.zeros(1)
    return loss(model, batch) + 0 * taken[0]


def test_everything_is_as_before_when_trials_ran_out_of_memory(caplog: pytest.LogCaptureFixture) -> None:
    subject = Subject()
    before = subject.everything

    with caplog.at_level(logging.INFO, "autoaccum"):
        found = plan(subject, with_a_cliff, room_bytes=8 * MIB, target_batch=1024)

    assert found.accumulation_steps > 1
    assert "oom" in caplog.text
    assert subject.everything == before


def test_everything_is_as_before_when_nothing_fits() -> None:
    subject = Subject()
    before = subject.everything

    with pytest.raises(autoaccum.NothingFits, match="raise memory_budget"):
        plan(subject, room_bytes=-MIB)

    assert subject.everything == before


def test_a_budget_that_leaves_no_room_for_gradients_is_told() -> None:
    model = nn.Linear(16, 1 << 17)

    with pytest.raises(autoaccum.NothingFits, match=r"^nothing fits: micro-batch 1 needs more than .* raise memory_"):
        autoaccum.plan(
            model,
            lambda model, batch: model(batch).mean(),
            torch.zeros(1, 16),
            optimizer=torch.optim.SGD(model.parameters()),
            target_batch=4,
            memory_budget=resident_bytes() + 4 * MIB,
        )


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (partial(in_forward, ValueError("no")), autoaccum.WorkloadError),
        (partial(in_backward, ValueError("no")), autoaccum.WorkloadError),
        (partial(in_forward, SystemExit(3)), autoaccum.WorkloadError),
        (partial(in_forward, KeyboardInterrupt()), KeyboardInterrupt),
        (partial(in_backward, KeyboardInterrupt()), KeyboardInterrupt),
        (partial(in_forward, signal.SIGINT), KeyboardInterrupt),
    ],
    ids=["forward", "backward", "exit", "ctrl-c forward", "ctrl-c backward", "signal"],
)
@pytest.mark.parametrize("at", [0, 4])
def test_everything_is_as_before_when_the_loss_raises(
    make: Callable[..., torch.Tensor], error: type[BaseException], at: int
) -> None:
    subject = Subject()
    before = subject.everything

    with pytest.raises(error):
        plan(subject, partial(make, at))

    assert subject.everything == before


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_everything_is_as_before_when_the_optimizer_raises_in_its_step(
    error: type[BaseException], trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = Subject(trained=trained)
    calls = []

    def sqrt(tensor: torch.Tensor, *more: Any) -> torch.Tensor:
        calls.append(tensor)
        if len(calls) == 9:
            raise error("in the middle of an update")
        return original(tensor, *more)

    original = torch.Tensor.sqrt
    monkeypatch.setattr(torch.Tensor, "sqrt", sqrt)
    before = subject.everything

    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else autoaccum.WorkloadError):
        plan(subject)

    assert len(calls) == 9
    assert subject.everything == before


@pytest.mark.parametrize("presses", [1, 3])
def test_ctrl_c_while_restoring_waits_until_all_is_restored(presses: int, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject()
    before = subject.everything
    restore = Snapshot.restore

    def restore_under_fire(snapshot: Snapshot) -> None:
        for _ in range(presses):
            os.kill(os.getpid(), signal.SIGINT)
        restore(snapshot)

    monkeypatch.setattr(Snapshot, "restore", restore_under_fire)

    with pytest.raises(KeyboardInterrupt):
        plan(subject)

    assert subject.everything == before
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_the_users_code_swallows_ends_the_probe_all_the_same() -> None:
    subject = Subject()
    seen = Seen()

    def swallowing(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.list.append(len(batch[0]))
        try:
            return in_forward(signal.SIGINT, 0, model, batch)
        except KeyboardInterrupt:
            return loss(model, batch)

    with pytest.raises(KeyboardInterrupt):
        plan(subject, swallowing)

    assert len(seen.list) == 1


def test_settings_that_the_users_code_changes_are_put_back() -> None:
    subject = Subject()
    before = subject.everything

    def careless(model: nn.Module, batch: Any) -> torch.Tensor:
        loss(model, batch)
        torch.backends.cudnn.benchmark = True
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        torch.set_autocast_enabled("cpu", True)
        torch.set_grad_enabled(False)
        raise ValueError

    with pytest.raises(autoaccum.WorkloadError):
        plan(subject, careless)

    assert subject.everything == before


def test_the_count_of_bytes_is_off_even_if_a_ctrl_c_hit_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveBytes, "__exit__", interrupted)
    subject = Subject()
    before = subject.everything

    with pytest.raises(KeyboardInterrupt):
        plan(subject, room_bytes=4 * MIB)

    assert subject.everything == before
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_what_the_loss_holds_is_restored_too() -> None:
    subject, teacher = Subject(), Subject()
    before = teacher.everything

    def holding(teacher_model: nn.Module) -> Callable[..., torch.Tensor]:
        return lambda model, batch: loss(model, batch) + loss(teacher_model, batch)

    plan(subject, holding(teacher.model))
    after = teacher.everything

    assert {key: after[key] for key in after if key != "rng"} == {key: before[key] for key in before if key != "rng"}


QUEUE = torch.zeros(3)
BANK: dict[str, Any] = {"features": [torch.zeros(2)], "teachers": {"first": nn.BatchNorm1d(16)}}
REGISTRY: dict[str, Any] = {"torch": torch, "class": Subject, "function": loss}


def with_globals(model: nn.Module, batch: Any) -> torch.Tensor:
    QUEUE.add_(1)
    BANK["features"].append(batch[0].mean(0))
    BANK["features"][0].fill_(7)
    BANK["teachers"]["first"](batch[0])
    REGISTRY["function"](model, batch)
    return loss(model, batch)


class Trainer:
    """Holds what its loss uses."""

    def __init__(self) -> None:
        self.queue = torch.zeros(3)
        self.seen: list[int] = []
        self.steps = 0

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.queue[0] += 1
        self.queue = torch.cat([self.queue[1:], self.queue[:1]])
        self.seen.append(len(batch[0]))
        self.steps += 1
        return loss(model, batch)

    __call__ = loss


def test_tensors_and_containers_that_the_loss_names_are_restored() -> None:
    features, teacher = BANK["features"], BANK["teachers"]["first"]

    plan(Subject(), with_globals)

    assert QUEUE.tolist() == [0, 0, 0]
    assert BANK["features"] is features
    assert [feature.tolist() for feature in features] == [[0, 0]]
    assert teacher.num_batches_tracked == 0
    assert list(REGISTRY) == ["torch", "class", "function"]


@pytest.mark.parametrize("way", ["method", "object", "closure", "partial"])
def test_what_the_loss_is_bound_to_is_restored(way: str) -> None:
    trainer = Trainer()
    queue, own = trainer.queue, torch.zeros(2)

    def adding(own: torch.Tensor, model: nn.Module, batch: Any) -> torch.Tensor:
        own += 1
        return loss(model, batch)

    ways: dict[str, Any] = {
        "method": trainer.loss,
        "object": trainer,
        "closure": lambda model, batch: loss(model, batch) + own.add_(1).sum(),
        "partial": partial(adding, own),
    }
    plan(Subject(), ways[way])

    assert trainer.queue is queue
    assert queue.tolist() == [0, 0, 0]
    assert (trainer.seen, trainer.steps) == ([], 0)
    assert own.tolist() == [0, 0]


class Summing(nn.Linear):
    """Adds up what it gave, graph and all."""

    total: torch.Tensor

    def __init__(self, *, in_place: bool) -> None:
        super().__init__(16, 4)
        self.register_buffer("total", torch.zeros(()))
        self.in_place = in_place

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output = super().forward(inputs)
        if self.in_place:
            self.total += output.mean()
        else:
            self.total = self.total + output.mean()
        return output


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_gathers_a_graph_is_as_before(in_place: bool) -> None:
    model = Summing(in_place=in_place)
    total, weight = model.total, model.weight.detach().clone()

    found = autoaccum.plan(model, default_loss, BATCH, optimizer=adam(model), target_batch=8)

    assert found.effective_batch == 8
    assert model.total is total
    assert (total.is_leaf, total.requires_grad, total.item()) == (True, False, 0.0)
    assert torch.equal(model.weight, weight)


def test_a_model_in_eval_mode_is_probed_in_training_mode_and_returns_to_eval() -> None:
    subject = Subject()
    subject.model.eval()
    seen = Seen()

    def spy(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.list.append(model.training)
        return loss(model, batch)

    plan(subject, spy)

    assert seen.list
    assert all(seen.list)
    assert not any(module.training for module in subject.model.modules())


def test_a_part_in_eval_mode_stays_there() -> None:
    subject = Subject()
    seen = Seen()

    def spy(model: Restless, batch: Any) -> torch.Tensor:
        seen.list.append((model.norm.training, model.frozen.training))
        return loss(model, batch)

    plan(subject, spy)

    assert set(seen.list) == {(True, False)}


def test_no_grad_around_the_call_does_not_matter() -> None:
    subject = Subject()

    with torch.no_grad():
        assert plan(subject).effective_batch == 8
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("probe_at", [0, 3])
def test_training_goes_on_as_if_there_had_been_no_probe(probe_at: int) -> None:
    def train(probe_at: int | None) -> list[float]:
        subject, losses = Subject(trained=False), []
        for step in range(6):
            if step == probe_at:
                plan(subject, room_bytes=8 * MIB, target_batch=512)
            batch = torch.randn(6, 16), torch.randint(4, (6,))
            subject.optimizer.zero_grad()
            value = loss(subject.model, batch)
            value.backward()  # type: ignore[no-untyped-call]
            subject.optimizer.step()
            subject.scheduler.step()
            losses.append(value.item())
        return losses

    assert train(probe_at) == train(None)


# The plan


def test_a_larger_budget_gives_a_larger_micro_batch_and_both_are_kept() -> None:
    subject = Subject()
    plan(subject)  # what torch loads at first use is resident from now on

    small = plan(subject, target_batch=1024, room_bytes=4 * MIB)
    large = plan(subject, target_batch=1024, room_bytes=8 * MIB)

    assert small.micro_batch < large.micro_batch < 1024
    for each in (small, large):
        assert each.measured
        assert each.headroom_bytes is not None
        assert each.headroom_bytes >= 0
        assert each.samples_per_second is not None


def test_make_batch_is_called_with_sizes_and_nothing_is_repeated() -> None:
    subject, sizes = Subject(), []

    def make_batch(size: int) -> Any:
        sizes.append(size)
        return torch.randn(size, 16), torch.randint(4, (size,))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = autoaccum.plan(subject.model, loss, make_batch, optimizer=subject.optimizer, target_batch=6)

    assert sizes == [2, 6, 6, 6]
    assert found.micro_batches == (6,)


def test_repeated_rows_are_told() -> None:
    with pytest.warns(autoaccum.AutoaccumWarning, match="batches were made by repeating the rows of the sample batch"):
        plan(Subject())


def test_the_confirming_trial_is_timed_without_the_count(caplog: pytest.LogCaptureFixture) -> None:
    seen = Seen()

    def spy(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.list.append(bool(torch.utils._python_dispatch._get_current_dispatch_mode_stack()))
        return loss(model, batch)

    with caplog.at_level(logging.INFO, "autoaccum"):
        plan(Subject(), spy, target_batch=2)

    # Two updates in the search, two counted ones to confirm, then three to warm up and five that are timed.
    assert seen.list == [True] * 4 + [False] * 8
    assert [record.message.split(":")[0] for record in caplog.records[:-1]] == ["trial 1", "trial 2"]
    assert caplog.records[-1].message.startswith("plan micro-batch 2 x 1 accumulation step = 2, peak ")


def test_half_made_optimizer_state_is_gone_before_the_next_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def zeros_like(*given: Any, **more: Any) -> torch.Tensor:
        calls.append(given)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("between exp_avg and exp_avg_sq")
        return original(*given, **more)

    original = torch.zeros_like
    monkeypatch.setattr(torch, "zeros_like", zeros_like)
    model = nn.Linear(16, 4)

    found = autoaccum.plan(model, default_loss, BATCH, optimizer=adam(model), target_batch=8)

    assert found.micro_batch == 1
    assert len(calls) > 2


def test_several_optimizers_step_together() -> None:
    subject = Subject()
    optimizers = [
        torch.optim.SGD([subject.model.first.weight], momentum=0.9),
        torch.optim.AdamW([subject.model.last.weight]),
    ]
    steps = []
    for optimizer in optimizers:
        optimizer.register_step_post_hook(lambda optimizer, *_: steps.append(type(optimizer).__name__))

    plan(subject, optimizer=optimizers)

    assert steps[:4] == ["SGD", "AdamW", "SGD", "AdamW"]
    assert not any(optimizer.state for optimizer in optimizers)


def test_ranks_share_the_target() -> None:
    with pytest.warns(autoaccum.AutoaccumWarning, match="the trials ran on one rank"):
        found = plan(Subject(), world_size=2)

    assert (found.rank_batch, found.world_size, found.effective_batch) == (4, 2, 8)


# What is wrong with what was given


class DistributedDataParallel(nn.Module):
    """Called like the wrapper, for which processes would have to be connected."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


class Homemade:
    """Steps like an optimizer."""

    def __init__(self) -> None:
        self.param_groups = [{"params": list(MODEL.parameters())}]

    def step(self) -> None:
        raise AssertionError


MODEL = nn.Linear(16, 4)
BATCH = torch.zeros(2, 16), torch.zeros(2, dtype=torch.long)
SPREAD = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"target_batch": 0}, "target_batch must be a whole number of 1 or more, not 0"),
        ({"target_batch": 2.0}, "target_batch must be a whole number of 1 or more, not 2.0"),
        ({"world_size": 3}, "cannot be shared equally by 3 ranks: take 6 or 9"),
        ({"split": "odd"}, 'unknown split "odd"'),
        ({"memory_budget": "much"}, '"much" is not a size'),
        ({"memory_budget": 0.5}, "memory_budget must be a size"),
        ({"model": len}, "give a torch.nn.Module"),
        ({"model": nn.ReLU()}, "the model has no parameters to train"),
        ({"model": SPREAD}, "the model is spread over cpu, meta: only one device can be probed"),
        ({"model": nn.LazyLinear(4)}, "run one batch through it first"),
        (
            {"model": DistributedDataParallel(MODEL)},
            "the model is wrapped in DistributedDataParallel, whose ranks would wait for each other: "
            "probe the plain model before wrapping it, the same on every rank, with world_size=N",
        ),
        ({"loss": 3}, "give a function"),
        ({"loss": None}, "the loss is a NoneType: give a function"),
        ({"optimizer": None}, "NoneType is no optimizer"),
        ({"optimizer": Homemade()}, "Homemade is no torch.optim.Optimizer, whose state plan() could put back"),
        ({"optimizer": []}, "there is no optimizer"),
        ({"optimizer": torch.optim.LBFGS(MODEL.parameters())}, "LBFGS evaluates the loss again and again"),
        ({"optimizer": adam(nn.Linear(2, 2))}, "the optimizer holds none of the model's parameters"),
        ({"batch": {"a": 1}}, "give make_batch(size) in place of a sample batch"),
        ({"batch": (torch.zeros(2, 2), torch.zeros(3))}, "batch[0] has 2 rows and batch[1] has 3: give make_batch"),
        ({"batch": torch.zeros(0, 2)}, "the sample batch is empty: give make_batch(size)"),
    ],
)
def test_what_cannot_be_probed_is_told_in_one_line(changed: dict[str, Any], told: str) -> None:
    given = {
        "model": MODEL,
        "loss": default_loss,
        "batch": BATCH,
        "optimizer": adam(MODEL),
        "target_batch": 8,
        **changed,
    }

    with pytest.raises(autoaccum.UsageError) as raised:
        autoaccum.plan(**given)

    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("own_loss", "told"),
    [
        (lambda model, batch: 3.0, "loss(model, batch) returned float: return a tensor"),
        (lambda model, batch: model(batch[0]), "returned shape (2, 4): return one number"),
        (lambda model, batch: model(batch[0]).sum().detach(), "returned a tensor without grad"),
        (lambda model, batch: dict[str, Any]()["key"], "in <lambda>: KeyError: 'key' (micro-batch 2)"),
    ],
)
def test_a_loss_that_breaks_its_contract_is_told_in_one_line(own_loss: Any, told: str) -> None:
    with pytest.raises(autoaccum.WorkloadError) as raised:
        autoaccum.plan(MODEL, own_loss, BATCH, optimizer=adam(MODEL), target_batch=8)

    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_traceback_of_the_users_code_is_a_note() -> None:
    with pytest.raises(autoaccum.WorkloadError) as raised:
        autoaccum.plan(MODEL, partial(in_forward, ValueError("no"), 0), BATCH, optimizer=adam(MODEL), target_batch=8)

    assert "raise error" in raised.value.__notes__[0]


def test_connected_ranks_are_told_to_probe_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)

    with pytest.raises(autoaccum.UsageError, match="2 ranks are connected"):
        plan(Subject())


def test_inference_mode_is_told() -> None:
    with torch.inference_mode(), pytest.raises(autoaccum.UsageError, match=r"outside of torch\.inference_mode"):
        autoaccum.plan(MODEL, default_loss, BATCH, optimizer=adam(MODEL), target_batch=8)


def test_a_make_batch_of_the_wrong_size_is_told() -> None:
    with pytest.raises(autoaccum.WorkloadError, match=r"make_batch\(2\) returned batch\[0\] with 3 rows"):
        autoaccum.plan(MODEL, default_loss, lambda _: (torch.zeros(3, 16),), optimizer=adam(MODEL), target_batch=8)

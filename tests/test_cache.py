"""A plan in a file: used as long as it holds, told and replaced as soon as it does not."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autoaccum
from autoaccum.live import cache
from autoaccum.live.fingerprint import _source
from autoaccum.records import Budget, Request

pytestmark = pytest.mark.usefixtures("fast_trials")

REQUEST = Request(workload="x", target_batch=8)
BUDGET = Budget(limit_bytes=1000, reserve_bytes=0, source="user")
HELD = 500
KEY = {"model": "a", "loss": "b"}
PLAN = autoaccum.Plan(
    micro_batch=4,
    accumulation_steps=2,
    micro_batches=(4, 4),
    world_size=1,
    effective_batch=8,
    peak_bytes=900,
    headroom_bytes=100,
    samples_per_second=1.5,
    measured=True,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    assert cache.save(path, KEY, PLAN, BUDGET, HELD) == []
    return path


def test_what_was_saved_is_loaded(path: Path) -> None:
    assert cache.load(path, KEY, REQUEST, BUDGET, HELD) == PLAN
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_file_is_no_warning(tmp_path: Path) -> None:
    assert cache.load(tmp_path / "none", KEY, REQUEST, BUDGET, HELD) == []


def test_another_key_is_told_by_name(path: Path) -> None:
    assert cache.load(path, {"model": "other", "loss": "b"}, REQUEST, BUDGET, HELD) == [
        f"{path} was made for another model: the plan in it is not used, and a new one takes its place"
    ]


def corrupt(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        content = json.loads(path.read_text())
        changed = change(content)
        path.write_text(json.dumps(content if changed is None else changed))

    return write


def plan_with(**changed: Any) -> Callable[[Path], None]:
    return corrupt(lambda content: content["plan"].update(changed))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text(""),
        lambda path: path.write_text(path.read_text()[:-20]),
        lambda path: path.write_bytes(b"\xff\xfe\x00"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: (path.unlink(), path.mkdir()),
        corrupt(lambda _: [1]),
        corrupt(lambda _: "plan"),
        corrupt(lambda _: {}),
        corrupt(lambda content: content.update(schema=99)),
        corrupt(lambda content: content.update(key=None)),
        corrupt(lambda content: content.update(plan=None)),
        corrupt(lambda content: content.update(plan=[])),
        corrupt(lambda content: content.update(plan={})),
        corrupt(lambda content: content.update(schema=1)),
        corrupt(lambda content: content.update(limit_bytes="many")),
        corrupt(lambda content: content.update(limit_bytes=None)),
        corrupt(lambda content: content.update(held_bytes=None)),
        corrupt(lambda content: content.update(held_bytes=-1)),
        corrupt(lambda content: content.update(held_bytes=1.5)),
        plan_with(micro_batch="4"),
        plan_with(micro_batch=3),
        plan_with(micro_batches=4),
        plan_with(micro_batches=[]),
        plan_with(micro_batches=[4, 5]),
        plan_with(micro_batches=[8, 0]),
        plan_with(accumulation_steps=3),
        plan_with(world_size=2),
        plan_with(effective_batch=16),
        plan_with(peak_bytes=None),
        plan_with(peak_bytes="900"),
        plan_with(samples_per_second="fast"),
        plan_with(measured="yes"),
        plan_with(options=None),
    ],
)
def test_a_corrupt_file_is_told_and_not_used(path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(path)

    told = cache.load(path, KEY, REQUEST, BUDGET, HELD)

    assert isinstance(told, list)
    assert told[0].endswith("the plan in it is not used, and a new one takes its place")


@pytest.mark.parametrize(
    ("limit", "source", "used"),
    [
        (900, "free", True),
        (899, "free", False),
        (1100, "free", True),
        (1101, "free", False),
        (1101, "capped", False),
        (1101, "user", True),
        (899, "user", False),
    ],
)
def test_a_plan_is_used_while_it_suits_the_memory_there_is(path: Path, limit: int, source: str, used: bool) -> None:
    found = cache.load(path, KEY, REQUEST, Budget(limit_bytes=limit, reserve_bytes=0, source=source), HELD)

    assert (found == PLAN) is used


@pytest.mark.parametrize("source", ["free", "user"])
@pytest.mark.parametrize(("held", "used"), [(0, True), (600, True), (601, False)])
def test_what_the_process_itself_holds_more_counts(path: Path, source: str, held: int, used: bool) -> None:
    found = cache.load(path, KEY, REQUEST, Budget(limit_bytes=1000, reserve_bytes=0, source=source), held)

    assert (found == PLAN) is used


@pytest.mark.parametrize("where", ["missing/plan.json", "."])
def test_a_file_that_cannot_be_written_is_a_warning(tmp_path: Path, where: str) -> None:
    (told,) = cache.save(tmp_path / where, KEY, PLAN, BUDGET, HELD)

    assert told.startswith(f"the plan cannot be kept in {tmp_path / where}: ")
    assert list(tmp_path.iterdir()) == []


# With real objects


class Net(nn.Module):
    def __init__(self, width: int = 4, *, checkpoint: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.drop = nn.Dropout(0.5)
        self.checkpoint = checkpoint

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.drop(self.linear(inputs))
        return output


def mean(model: nn.Module, batch: Any) -> torch.Tensor:
    output: torch.Tensor = model(batch).mean()
    return output


def scaled(model: nn.Module, batch: Any, scale: float = 1.0) -> torch.Tensor:
    return mean(model, batch) * scale


class Criterion(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.extra = nn.Linear(size, 1)

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return mean(model, batch)


def adam(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), **settings)


class Call:
    """`autoaccum.plan` on small objects, which can be changed one by one; says whether trials ran."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials = 0

    def __call__(self, *, make_optimizer: Callable[..., Any] = adam, **changed: Any) -> autoaccum.Plan:
        model = changed.pop("model", None) or Net()
        loss = changed.pop("loss", mean)
        batch = changed.pop("batch", torch.zeros(2, 3))
        optimizer = make_optimizer(model)
        model.register_forward_pre_hook(self._count)
        given: dict[str, Any] = {"target_batch": 2, "memory_budget": "4GiB", "cache": self.path, **changed}
        return autoaccum.plan(model, loss, batch, optimizer=optimizer, **given)

    def _count(self, *_: object) -> None:
        self.trials += 1


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Call]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "batches were made by repeating")
        yield Call(tmp_path / "plan.json")


def test_a_hit_makes_no_trial_and_gives_the_same_plan(call: Call) -> None:
    first = call()
    call.trials = 0

    second = call()

    assert call.trials == 0
    assert second == first


@pytest.mark.parametrize(
    "same",
    [
        {"make_optimizer": partial(adam, lr=3.0)},
        {"make_optimizer": partial(adam, betas=(0.8, 0.9))},
        {"batch": torch.ones(7, 3)},
        {"batch": lambda size: torch.ones(size, 3)},
    ],
    ids=["learning rate", "betas", "rows and values", "a function for the same batches"],
)
def test_what_memory_does_not_depend_on_is_a_hit(call: Call, same: dict[str, Any]) -> None:
    call()
    call.trials = 0

    call(**same)

    assert call.trials == 0


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("model", {}, {"model": Net(5)}),
        ("model", {}, {"model": Net().eval()}),
        ("model", {}, {"model": Net(checkpoint=True)}),
        ("model", {}, {"model": Net().requires_grad_(False).requires_grad_(True).double(), "batch": lambda n: 1}),
        ("optimizer", {}, {"make_optimizer": partial(adam, amsgrad=True)}),
        ("optimizer", {}, {"make_optimizer": partial(adam, weight_decay=0.1)}),
        ("optimizer", {}, {"make_optimizer": lambda model: torch.optim.SGD(model.parameters())}),
        ("loss", {}, {"loss": scaled}),
        ("loss", {"loss": partial(scaled, scale=1.0)}, {"loss": partial(scaled, scale=2.0)}),
        ("loss", {"loss": Criterion(1)}, {"loss": Criterion(2)}),
        ("loss", {"loss": eval("lambda m, b: m(b).mean()")}, {"loss": eval("lambda m, b: m(b).sum()")}),
        ("batch", {"batch": lambda n: torch.zeros(n, 3)}, {"batch": lambda n: torch.zeros(n, 2, 3)}),
        ("target_batch", {}, {"target_batch": 4}),
        ("split", {}, {"split": "even"}),
        ("memory_budget", {}, {"memory_budget": "3GiB"}),
    ],
)
def test_another_of_what_it_depends_on_makes_a_plan_stale(
    call: Call, name: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    call(**first)
    call.trials = 0
    if "model" in second and "batch" in second:
        second = {**second, "batch": lambda n: torch.zeros(n, 3, dtype=torch.float64)}

    with pytest.warns(autoaccum.AutoaccumWarning, match=f"was made for another {name}"):
        found = call(**second)

    assert call.trials > 0
    call.trials = 0
    assert call(**second) == found
    assert call.trials == 0


def test_autocast_makes_a_plan_stale(call: Call) -> None:
    call()

    with torch.autocast("cpu", torch.bfloat16), pytest.warns(autoaccum.AutoaccumWarning, match="another autocast"):
        call()


def test_another_version_makes_a_plan_stale(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call()
    monkeypatch.setattr("autoaccum.live.fingerprint.__version__", "0")

    with pytest.warns(autoaccum.AutoaccumWarning, match="another versions"):
        call()


def test_another_device_makes_a_plan_stale(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call()
    monkeypatch.setattr("autoaccum.device.cpu._cpu_name", lambda: "another")

    with pytest.warns(autoaccum.AutoaccumWarning, match="another device"):
        call()


def test_a_corrupt_cache_is_told_and_replaced(call: Call) -> None:
    call.path.write_text("{")

    with pytest.warns(autoaccum.AutoaccumWarning, match="is not JSON"):
        call()

    call.trials = 0
    call()
    assert call.trials == 0


def test_a_cache_that_cannot_be_written_gives_the_plan_all_the_same(call: Call) -> None:
    call.path = call.path.parent / "missing" / "plan.json"

    with pytest.warns(autoaccum.AutoaccumWarning, match="the plan cannot be kept in"):
        found = call()

    assert found.effective_batch == 2


def test_the_default_budget_is_cached_too(call: Call) -> None:
    call(memory_budget=None)
    call.trials = 0

    call(memory_budget=None)

    assert call.trials == 0


def test_a_plan_is_stale_once_the_process_holds_too_much_for_it(call: Call) -> None:
    call(memory_budget="4GiB")
    more = torch.ones(1 << 20, 16)  # 64 MiB
    content = json.loads(call.path.read_text())
    content["plan"]["peak_bytes"] = content["limit_bytes"] - (32 << 20)  # as tight as plans are
    call.path.write_text(json.dumps(content))

    with pytest.warns(autoaccum.AutoaccumWarning, match="needs more than the 4.00 GiB that there are now"):
        call(memory_budget="4GiB")

    assert more.sum() == 1 << 24


class Deep(Net):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return sum((super(Deep, self).forward(inputs) for _ in range(self.depth)), torch.zeros(()))


def written(helper: str) -> nn.Module:
    """Give a model whose class was typed in: there is no file to read it from."""
    names: dict[str, Any] = {"Net": Net, "__name__": "__main__"}
    exec(f"class Own(Net):\n def helper(self, x): return {helper}\n def forward(self, x): return self.helper(x)", names)
    model: nn.Module = names["Own"]()
    return model


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: Deep(1), lambda: Deep(2)),
        (lambda: written("self.linear(x)"), lambda: written("self.linear(x) * 2 + 1")),
    ],
    ids=["a number", "a method that forward calls"],
)
def test_the_inside_of_a_model_makes_a_plan_stale(
    call: Call, first: Callable[[], nn.Module], second: Callable[[], nn.Module]
) -> None:
    call(model=first())
    call.trials = 0
    call(model=first())
    assert call.trials == 0

    with pytest.warns(autoaccum.AutoaccumWarning, match="was made for another model"):
        call(model=second())


def test_the_source_of_a_whole_class_is_looked_at_and_of_torchs_only_the_name() -> None:
    assert "self.drop = nn.Dropout(0.5)" in str(_source(Deep))
    assert _source(nn.Linear) == ["torch.nn.modules.linear.Linear", []]


@pytest.mark.parametrize("change", ["cudnn", "attention", "allocator", "compiled"])
def test_settings_make_a_plan_stale(call: Call, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call()
    model = Net()
    if change == "cudnn":
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    elif change == "attention":
        monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: False)
    elif change == "allocator":
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    else:
        model.compile(backend="eager")

    with pytest.warns(autoaccum.AutoaccumWarning, match="was made for another settings"):
        call(model=model)


def test_a_hit_leaves_the_random_generators_alone(call: Call) -> None:
    generator = torch.Generator()

    def make_batch(size: int) -> torch.Tensor:
        return torch.rand(size, 3) + torch.rand(size, 3, generator=generator)

    call(batch=make_batch)
    model = Net()
    before, before_own = torch.get_rng_state(), generator.get_state()

    call(model=model, batch=make_batch)

    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(generator.get_state(), before_own)

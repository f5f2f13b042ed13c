"""Snapshots of live objects: one kind of change each. tests/test_live.py has them all at once, in a probe."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import autoaccum
from autoaccum.live.ambient import Ambient
from autoaccum.live.state import Snapshot, restore_all

from .everything import Subject

CHANGES: dict[str, Callable[[Subject], Any]] = {
    "a parameter's values": lambda s: s.model.first.weight.data.fill_(7),
    "values that are not numbers": lambda s: s.model.first.weight.data.fill_(float("nan")),
    "a parameter's memory": lambda s: setattr(s.model.first.weight, "data", torch.zeros(3)),
    "a parameter's type": lambda s: s.model.double(),
    "a parameter": lambda s: setattr(s.model.first, "weight", nn.Parameter(torch.zeros(3))),
    "a parameter more": lambda s: s.model.register_parameter("more", nn.Parameter(torch.zeros(3))),
    "a gradient's values": lambda s: s.model.first.weight.grad.fill_(7),  # type: ignore[union-attr]
    "a gradient": lambda s: setattr(s.model.first.weight, "grad", torch.zeros(512, 16)),
    "no gradient": lambda s: s.optimizer.zero_grad(),
    "a gradient where none was": lambda s: setattr(s.model.last.weight, "grad", torch.zeros(4, 512)),
    "requires_grad": lambda s: s.model.requires_grad_(False),
    "a buffer's values": lambda s: s.model.norm.running_mean.fill_(7),  # type: ignore[union-attr]
    "a buffer": lambda s: setattr(s.model, "average", torch.ones(4)),
    "a buffer less": lambda s: delattr(s.model, "average"),
    "an expanded buffer": lambda s: s.model.wide.untyped_storage().fill_(1),  # type: ignore[union-attr,operator]
    "a tensor that is no buffer": lambda s: s.model.plain.fill_(7),
    "an attribute": lambda s: setattr(s.model, "calls", -1),
    "an attribute more": lambda s: setattr(s.model, "more", -1),
    "a list": lambda s: s.model.history.append(0),
    "a list in a list": lambda s: s.model.history[0].append(0),
    "a generator": lambda s: torch.rand(3, generator=s.model.generator),
    "modes": lambda s: s.model.eval(),
    "a module": lambda s: setattr(s.model, "drop", nn.Identity()),
    "a hook of a module": lambda s: s.model.first.register_forward_pre_hook(print),
    "a hook of a parameter": lambda s: s.model.first.weight.register_hook(print),  # type: ignore[no-untyped-call]
    "state": lambda s: s.optimizer.state.clear(),
    "state's values": lambda s: s.optimizer.state[s.model.first.weight]["exp_avg"].fill_(7),
    "state of a parameter": lambda s: s.optimizer.state[s.model.first.weight].clear(),
    "state's tensor": lambda s: s.optimizer.state[s.model.first.weight].update(exp_avg=torch.zeros(1)),
    "a learning rate": lambda s: s.optimizer.param_groups[0].update(lr=7.0),
    "a group": lambda s: s.optimizer.add_param_group({"params": [torch.zeros(1)]}),
    "another list of groups": lambda s: setattr(s.optimizer, "param_groups", []),
    "what a scheduler counts": lambda s: setattr(s.optimizer, "_opt_called", "changed"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_undone(change: Callable[[Subject], Any]) -> None:
    subject = Subject()
    before = subject.everything
    snapshot = Snapshot(subject.model, subject.optimizer)
    change(subject)
    changed = subject.everything

    snapshot.restore()

    after = subject.everything
    assert changed != before
    assert {key for key in before if after[key] != before[key]} - {"rng"} == set()
    assert before.keys() == after.keys()


def test_a_snapshot_can_be_restored_again() -> None:
    subject = Subject()
    before = subject.everything
    snapshot = Snapshot(subject.model, subject.optimizer)

    for value in (1, 2):
        subject.model.first.weight.data.fill_(value)
        snapshot.restore()

        assert subject.everything == before


def test_a_storage_that_was_emptied_is_filled_again() -> None:
    weight = nn.Parameter(torch.arange(6.0))
    snapshot = Snapshot([weight])
    weight.untyped_storage().resize_(0)

    snapshot.restore()

    assert weight.tolist() == list(range(6))


def test_a_tensor_that_a_graph_came_to_hang_on_is_a_leaf_again() -> None:
    model, total = nn.Linear(2, 2), torch.zeros(())
    model.register_buffer("total", total)
    snapshot = Snapshot(model)
    total += model(torch.ones(1, 2)).mean()

    snapshot.restore()

    assert model.total is total
    assert (total.is_leaf, total.requires_grad, total.item()) == (True, False, 0.0)


class Stubborn(dict[str, int]):
    """Cannot be put back once it was changed."""

    def clear(self) -> None:
        raise RuntimeError("not this one\nfor reasons")


def test_what_cannot_be_put_back_keeps_nothing_else_from_it() -> None:
    stubborn, weight, generator = Stubborn(), torch.zeros(2), torch.Generator()
    state = generator.get_state()
    snapshot = Snapshot(stubborn, weight, generator)
    stubborn["more"] = 1
    weight.fill_(7)
    torch.rand(2, generator=generator)

    with pytest.raises(autoaccum.AutoaccumError, match=r"^a Stubborn: not this one$"):
        snapshot.restore()

    assert weight.tolist() == [0, 0]
    assert torch.equal(generator.get_state(), state)


def test_what_is_imported_meanwhile_stays() -> None:
    snapshot = Snapshot(sys.modules, {"inside": globals()})
    sys.modules["autoaccum_new"] = sys
    globals()["new"] = 1

    snapshot.restore()

    assert sys.modules.pop("autoaccum_new") is sys
    assert globals().pop("new") == 1


def test_a_device_is_blamed_only_if_it_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    def fail() -> None:
        raise RuntimeError("broken\nmore")

    with pytest.raises(autoaccum.AutoaccumError, match=r"^not everything could be .*\(lost: broken\)$") as raised:
        restore_all(fail, lambda: done.append(1))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(autoaccum.DeviceError, match=r"^the device failed, .* start a new process \(broken\)$"):
        restore_all(fail, lambda: done.append(2))

    assert not isinstance(raised.value, autoaccum.DeviceError)
    assert done == [1, 2]


def test_tied_parameters_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    snapshot = Snapshot(model)
    model[1].weight = nn.Parameter(torch.zeros(2, 2))

    snapshot.restore()

    assert model[1].weight is model[0].weight


def test_a_sparse_gradient_is_restored() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    model(torch.tensor([1, 1, 3])).sum().backward()
    grad = model.weight.grad
    assert grad is not None
    before = grad.to_dense().clone()
    snapshot = Snapshot(model)
    grad.mul_(7)
    model.weight.grad = None

    snapshot.restore()

    assert model.weight.grad is grad
    assert torch.equal(grad.to_dense(), before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_restored() -> None:
    model = torch.jit.script(nn.Linear(2, 2))
    before = model.weight.detach().clone()
    snapshot = Snapshot(model)
    model.weight.data.fill_(7)

    snapshot.restore()

    assert torch.equal(model.weight, before)


def test_memory_that_cannot_be_written_is_left_alone(tmp_path: Any) -> None:
    path = tmp_path / "table"
    numpy.arange(8, dtype=numpy.float32).tofile(path)
    model = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="not writable"):
        table = torch.from_numpy(numpy.memmap(path, dtype=numpy.float32, mode="r"))
    model.register_buffer("table", table)

    Snapshot(model).restore()  # writing would end the process

    assert table.tolist() == list(range(8))


def test_a_graph_from_before_can_still_be_walked_back() -> None:
    model = nn.Linear(2, 1)
    loss = (model(torch.ones(1, 2)) ** 2).sum()
    snapshot = Snapshot(model)

    snapshot.restore()

    loss.backward()


def test_random_generators_go_on_as_before() -> None:
    def draw() -> tuple[float, ...]:
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    ambient = Ambient()
    first = draw()
    draw()

    ambient.restore()

    assert draw() == first


def test_a_setting_that_has_not_changed_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    ambient = Ambient()
    monkeypatch.setattr(torch, "set_default_dtype", None)

    ambient.restore()

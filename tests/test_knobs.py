"""Each knob does what it says, and is set back; and a plan's training turns what the plan asks for."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autoaccum.errors import UsageError
from autoaccum.knobs import names, tf32
from autoaccum.knobs.checkpoint import is_checkpointed
from autoaccum.knobs.support import unsupported
from autoaccum.knobs.turn import Turned
from autoaccum.plans import Plan
from autoaccum.records import Knobs
from tests.training import mean_loss, samples

CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")  # what torch.compile imports uses it


def network(*, images: bool = False) -> nn.Sequential:
    torch.manual_seed(1)
    if images:  # no bias before the BatchNorm: its gradient is nothing but rounding, which Adam blows up
        convolution = nn.Conv2d(3, 8, 3, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 5))
    blocks = [nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 6)) for _ in range(4)]
    return nn.Sequential(*blocks, nn.Linear(6, 5))


def batch(size: int = 24, *, images: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = samples(size)
    pictures = torch.randn(size, 3, 6, 6, generator=torch.Generator().manual_seed(3))
    return pictures if images else inputs.float(), labels


def update(model: nn.Module, optimizer: torch.optim.Optimizer, times: int = 1, *, images: bool = False) -> None:
    for _ in range(times):
        optimizer.zero_grad()
        torch.autograd.backward(mean_loss(model, batch(images=images)))
        optimizer.step()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def plan(**options: Any) -> Plan:
    return Plan.of(target_batch=24, micro_batch=12, options=options)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, names.BY_DEFAULT),
        ("none", ()),
        (" checkpoint , bf16", ("bf16", "checkpoint", *names.BY_DEFAULT)),
        (["bf16", "fused"], ("bf16", *names.BY_DEFAULT)),
        ([], ()),
        (names.ALLOWED, names.ALLOWED),
    ],
)
def test_what_may_be_turned_is_the_default_and_what_is_asked_for(text: Any, expected: tuple[str, ...]) -> None:
    assert names.parse_allow(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf61", r'no knob "bf61": did you mean bf16\? known are bf16, fp16, tf32'),
        ("frobnicate", r'no knob "frobnicate": known are'),
        ("bf16,,tf32", "empty name"),
        ("", "empty name"),
        ("none,bf16", "stands alone"),
    ],
)
def test_a_name_that_is_none_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        names.parse_allow(text)
    assert "\n" not in str(error.value)


def test_the_values_of_each_knob_begin_with_its_default() -> None:
    everything = names.values(names.ALLOWED)

    assert names.values(["fp16", "checkpoint"]) == {"precision": (None, "fp16"), "checkpoint": (None, "half", "all")}
    assert names.values([]) == {}
    assert Knobs(**{field: several[0] for field, several in everything.items()}) == Knobs()
    assert set(everything) == set(Knobs.__dataclass_fields__)


def test_every_value_has_words() -> None:
    for field, several in names.values(names.ALLOWED).items():
        for value in several[1:]:
            (word,) = names.words(Knobs(**{field: value}))
            assert "=" not in word
    assert names.words(Knobs()) == []


def test_the_names_need_no_torch() -> None:
    code = "import autoaccum.knobs.names, autoaccum.plans, sys; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


SEGMENTS = "expandable_segments:True"


@pytest.mark.parametrize(
    ("given", "cuda", "general"),
    [
        ({}, SEGMENTS, SEGMENTS),
        ({"PYTORCH_CUDA_ALLOC_CONF": "a:1"}, f"a:1,{SEGMENTS}", f"a:1,{SEGMENTS}"),
        ({"PYTORCH_ALLOC_CONF": "a:1"}, f"a:1,{SEGMENTS}", f"a:1,{SEGMENTS}"),
        ({"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "b:2"}, f"b:2,{SEGMENTS}", f"a:1,{SEGMENTS}"),
    ],
)
def test_both_variables_of_the_allocator_are_extended(given: dict[str, str], cuda: str, general: str) -> None:
    assert names.environment(Knobs(expandable_segments=True), given) == {
        "PYTORCH_CUDA_ALLOC_CONF": cuda,
        "PYTORCH_ALLOC_CONF": general,
    }


def test_what_the_user_says_of_segments_stays() -> None:
    given = {"PYTORCH_ALLOC_CONF": "expandable_segments: False"}

    assert names.environment(Knobs(expandable_segments=True), given) == {}
    assert names.environment(Knobs(), {}) == {}


# -- support -----------------------------------------------------------------------------------------------------------


def test_what_a_small_model_on_the_cpu_cannot_use_is_said_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    optimizer = torch.optim.Adafactor(model.parameters())  # which imports what keeps the name of the compiler
    monkeypatch.setenv("CXX", "/no/such/compiler")

    assert unsupported(model, [optimizer], CPU) == {
        "fp16": "needs CUDA",
        "tf32": "needs CUDA",
        "compile": "no C++ compiler was found",
        "checkpoint": "no repeated blocks were found",
        "channels_last": "the model has no Conv2d",
        "fused": "Adafactor has no fused implementation",
        "expandable_segments": "needs CUDA",
    }


def test_what_can_be_used_has_no_reason() -> None:
    model = nn.Sequential(network(images=True), network(images=True))
    reasons = unsupported(model, [torch.optim.AdamW(model.parameters())], CPU)

    assert {"bf16", "checkpoint", "channels_last", "foreach", "fused"}.isdisjoint(reasons)


class Foreign:
    """An optimizer that is none of torch's."""

    def __init__(self) -> None:
        self.param_groups: list[Any] = [{"params": []}]

    def step(self) -> None: ...


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (lambda p: torch.optim.Adam(p, fused=True), "fused", "the optimizer is already fused"),
        (lambda p: torch.optim.Adam(p, fused=True), "foreach", "the optimizer is already fused"),
        (lambda p: torch.optim.Adam(p, foreach=True), "foreach", "the optimizer is already foreach"),
        (lambda _: Foreign(), "fused", "Foreign is no torch.optim.Optimizer"),
        (lambda p: torch.optim.SGD(p, differentiable=True), "fused", "SGD is differentiable, which excludes fused"),
    ],
)
def test_an_optimizer_that_cannot_step_so_is_named(make: Callable[[Any], Any], name: str, reason: str) -> None:
    model = network()

    assert unsupported(model, [make(model.parameters())], CPU)[name] == reason


def test_one_optimizer_of_several_that_can_is_enough() -> None:
    model = network()
    optimizers = [torch.optim.Adafactor(model[0].parameters()), torch.optim.AdamW(model[1].parameters())]

    assert "fused" not in unsupported(model, optimizers, CPU)
    Turned(Knobs(optimizer="fused"), model, optimizers, CPU)
    assert "fused" not in optimizers[0].defaults
    assert optimizers[1].defaults["fused"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_that_autocast_does_not_change_are_seen(dtype: torch.dtype) -> None:
    model = network().to(dtype)

    assert str(dtype).removeprefix("torch.") in unsupported(model, [], CPU)["bf16"]


def test_layouts_and_checkpoints_that_are_there_already_are_seen() -> None:
    model = network(images=True)
    Turned(Knobs(channels_last=True), model, [], CPU)
    object.__setattr__(model, "gradient_checkpointing", True)  # as transformers sets it

    assert unsupported(model, [], CPU)["channels_last"] == "the weights are already channels_last"
    assert unsupported(model, [], CPU)["checkpoint"] == "the model checkpoints its blocks already"


# -- turning -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["foreach", "fused"])
@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda p: torch.optim.SGD(p, 0.1, 0.9), torch.optim.Adagrad])
def test_an_optimizer_steps_otherwise_to_the_same_weights_with_the_state_that_it_has(make: Any, kind: str) -> None:
    plain, model = network(images=True), network(images=True)
    usual, optimizer = make(plain.parameters()), make(model.parameters())
    update(plain, usual, times=6, images=True)

    update(model, optimizer, times=2, images=True)
    turned = Turned(Knobs(optimizer=kind), model, [optimizer], CPU)
    assert all(group[kind] for group in optimizer.param_groups)
    update(model, optimizer, times=2, images=True)
    turned.undo()
    update(model, optimizer, times=2, images=True)

    torch.testing.assert_close(weights(model), weights(plain), atol=1e-6, rtol=0)
    assert optimizer.state_dict()["param_groups"] == usual.state_dict()["param_groups"]
    assert optimizer.defaults == usual.defaults
    assert not hasattr(optimizer, "_step_supports_amp_scaling")


def test_counters_of_steps_move_to_where_fused_kernels_read_them_and_back() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    update(model, optimizer, times=3)
    first = next(iter(optimizer.state.values()))
    first["step"] = 3  # as old checkpoints have it
    turned = Turned(Knobs(optimizer="fused"), model, [optimizer], CPU)
    assert first["step"].dtype is torch.float32
    update(model, optimizer)

    turned.undo()

    assert first["step"] == 4
    assert isinstance(first["step"], int)


@pytest.mark.parametrize("optimizer_knob", [None, "fused"])
def test_channels_last_changes_the_layout_and_not_the_training(optimizer_knob: str | None) -> None:
    plain, model = network(images=True), network(images=True)
    usual, optimizer = torch.optim.AdamW(plain.parameters()), torch.optim.AdamW(model.parameters())
    update(plain, usual, times=4, images=True)
    weight = model.get_parameter("0.weight")
    update(model, optimizer, times=2, images=True)

    turned = Turned(Knobs(channels_last=True, optimizer=optimizer_knob), model, [optimizer], CPU)
    assert model.get_parameter("0.weight") is weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert optimizer.state[weight]["exp_avg"].stride() == weight.stride()
    update(model, optimizer, times=1, images=True)
    turned.undo()
    assert weight.is_contiguous()
    assert optimizer.state[weight]["exp_avg"].is_contiguous()
    update(model, optimizer, times=1, images=True)

    torch.testing.assert_close(weights(model), weights(plain), atol=1e-5, rtol=0)


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler")
def test_a_compiled_and_checkpointed_model_has_the_same_loss_until_it_is_undone() -> None:
    def make() -> nn.Sequential:  # of torch's own classes alone, which model.compile() would skip
        torch.manual_seed(1)
        blocks = [nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()) for _ in range(2)]
        return nn.Sequential(*blocks, nn.Linear(6, 5))

    plain, model = make(), make()
    torch.compiler.reset()
    turned = Turned(Knobs(compile=True, checkpoint="all"), model, [], CPU)
    counters = torch._dynamo.utils.counters
    counters.clear()

    losses = [mean_loss(each, batch()) for each in (plain, model)]
    for loss in losses:
        torch.autograd.backward(loss)
    assert counters["stats"]["unique_graphs"] == 1
    turned.undo()

    assert losses[1].item() == pytest.approx(losses[0].item(), abs=1e-5)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=0)
    torch.testing.assert_close(plain.state_dict(), model.state_dict(), atol=1e-5, rtol=0)
    assert model._compiled_call_impl is None
    assert not any(is_checkpointed(block) for block in model)


def test_compiling_replaces_the_call_in_place() -> None:
    model = network()
    turned = Turned(Knobs(compile=True), model, [], CPU)

    assert model._compiled_call_impl is not None
    assert "compile" in unsupported(model, [], CPU)
    turned.undo()
    assert model._compiled_call_impl is None


def tf32_switches() -> list[Any]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    new = [place.fp32_precision for place in (matmul, cudnn.conv, cudnn.rnn)] if hasattr(cudnn, "conv") else []
    return [matmul.allow_tf32, cudnn.allow_tf32, torch.get_float32_matmul_precision(), *new]


def test_tf32_is_on_by_all_names_and_off_again_without_a_warning() -> None:
    before = tf32_switches()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        turned = Turned(Knobs(tf32=True), network(), [], CPU)
        assert tf32.is_on()
        assert tf32_switches()[:3] == [True, True, "high"]
        turned.undo()

    assert tf32_switches() == before
    assert not tf32.is_on()


def test_what_cannot_be_turned_turns_back_what_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3))

    with pytest.raises(UsageError, match="no repeated blocks were found"):
        Turned(Knobs(channels_last=True, checkpoint="all"), model, [], CPU)
    assert model.get_parameter("0.weight").is_contiguous()


def test_fp16_comes_with_a_scaler() -> None:
    assert isinstance(Turned(Knobs(precision="fp16"), network(), [], CPU).scaler, torch.amp.GradScaler)
    assert Turned(Knobs(precision="bf16"), network(), [], CPU).scaler is None


# -- a plan's training -------------------------------------------------------------------------------------------------


def test_the_plan_says_what_it_asks_for() -> None:
    assert str(plan(precision="bf16", optimizer="fused")).endswith("= 24 with bf16 autocast, fused optimizer")
    assert str(plan()).endswith("= 24")


def test_the_step_computes_the_loss_under_autocast_and_the_update_outside() -> None:
    model = network()
    seen: list[torch.dtype] = []
    model[4].register_forward_hook(lambda _, __, output: seen.append(output.dtype))

    plan(precision="bf16").stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)(batch())

    assert seen == [torch.bfloat16, torch.bfloat16]
    assert not torch.is_autocast_enabled("cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_fp16_without_a_scaler_is_refused_before_anything_is_turned() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())

    with pytest.raises(UsageError, match=r"the plan trains in fp16: give scaler=torch\.amp\.GradScaler\(\)"):
        plan(precision="fp16", checkpoint="all").stepper(model, optimizer, mean_loss)
    assert not any(is_checkpointed(block) for block in model)


def test_fp16_trains_with_a_scaler() -> None:
    model = network()
    before = weights(model)
    step = plan(precision="fp16", optimizer="fused").stepper(
        model, torch.optim.AdamW(model.parameters()), mean_loss, scaler=torch.amp.GradScaler("cpu", init_scale=64.0)
    )

    assert not step(batch()).skipped
    assert not torch.equal(weights(model), before)


def test_the_step_with_options_makes_the_same_update() -> None:
    plain, model = network(), network()
    for each, its in ((plain, plan()), (model, plan(checkpoint="half", optimizer="fused"))):
        step = its.stepper(each, torch.optim.AdamW(each.parameters()), mean_loss)
        for _ in range(3):
            step(batch())

    assert is_checkpointed(model[0])
    assert not is_checkpointed(model[1])
    torch.testing.assert_close(weights(model), weights(plain), atol=1e-6, rtol=0)


def test_preparing_twice_and_making_the_stepper_turn_once() -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    asked = plan(checkpoint="all", optimizer="fused", compile=True)
    asked.prepare(model, optimizer)
    forward, compiled = model[0].forward, model._compiled_call_impl

    asked.prepare(model)
    asked.stepper(model, optimizer, mean_loss)

    assert model[0].forward is forward
    assert model._compiled_call_impl is compiled
    asked.prepare(copy.deepcopy(model))  # which brought its checkpoints with it, but is not compiled


def test_a_plan_without_options_leaves_everything_alone() -> None:
    model = network()
    before = copy.deepcopy(model.__dict__)
    step = plan().stepper(model, torch.optim.AdamW(model.parameters()), mean_loss)

    assert step._loss is mean_loss
    assert model.__dict__.keys() == before.keys()
    plan().prepare(model)


def test_an_optimizer_that_cannot_do_what_the_plan_asks_for_is_refused() -> None:
    model = network()

    with pytest.raises(UsageError, match="a fused optimizer is asked for: Adafactor has no fused implementation"):
        plan(optimizer="fused").stepper(model, torch.optim.Adafactor(model.parameters()), mean_loss)


def test_an_unknown_value_of_an_option_is_refused() -> None:
    with pytest.raises(UsageError, match="option precision is one of None, 'bf16', 'fp16', not 'fp8'"):
        plan(precision="fp8")
    with pytest.raises(UsageError, match="a plan has no option precison: known are precision, tf32"):
        plan(precison="bf16")


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    "options",
    [{"checkpoint": "all"}, {"channels_last": True}, {"compile": True}],
    ids=lambda options: next(iter(options)),
)
def test_a_wrapped_model_must_have_been_prepared_before(options: dict[str, Any]) -> None:
    images = "channels_last" in options
    model, asked = network(images=images), plan(**options)
    wrapped = DistributedDataParallel(network(images=images))
    with pytest.raises(UsageError, match=r"before the model is wrapped: call plan\.prepare\(model\), then wrap it"):
        asked.stepper(wrapped, torch.optim.SGD(wrapped.parameters(), 0.1), mean_loss)

    asked.prepare(model)
    ready = DistributedDataParallel(model)
    step = asked.stepper(ready, torch.optim.SGD(ready.parameters(), 0.1), mean_loss)

    assert options == {"compile": True} or step(batch(images=images)).count == 24


@pytest.mark.usefixtures("one_rank")
def test_a_wrapped_model_takes_what_needs_no_preparation() -> None:
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters())

    step = plan(precision="bf16", optimizer="fused").stepper(model, optimizer, mean_loss)

    assert step(batch()).count == 24
    assert optimizer.param_groups[0]["fused"]

"""Checkpointed blocks compute the same to the bit, with fewer bytes alive, and leave no trace once undone."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import set_checkpoint_early_stop

from autoaccum.device.meter import LiveBytes
from autoaccum.knobs.blocks import repeated_blocks
from autoaccum.knobs.checkpoint import checkpoints_itself, is_checkpointed
from autoaccum.knobs.turn import Turned
from autoaccum.records import Knobs

CPU = torch.device("cpu")


class Block(nn.Module):
    """Everything that a second forward pass could get wrong: random numbers, and statistics of three kinds."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.usual, self.cumulative = nn.BatchNorm1d(4 * width), nn.BatchNorm1d(width, momentum=None)
        self.drop, self.fixed = nn.Dropout(0.3), nn.BatchNorm1d(width).eval()

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        inner = self.drop(torch.relu(self.usual(self.first(x))))
        return x + scale * torch.as_tensor(self.fixed(self.cumulative(self.second(inner))))


class Net(nn.Module):
    def __init__(self, blocks: int = 5) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, scale=0.5)
        return torch.as_tensor(self.head(x))


def network() -> Net:
    torch.manual_seed(1)
    return Net()


def turned(model: nn.Module, which: str) -> Turned:
    return Turned(Knobs(checkpoint=which), model, [], CPU)


def trained(model: nn.Module, passes: int = 3) -> dict[str, torch.Tensor]:
    """Gradients and buffers after some passes, under seeds of their own."""
    torch.manual_seed(2)
    inputs = torch.randn(64, 32)
    for _ in range(passes):
        torch.autograd.backward(model(inputs).square().mean())
    drawn = torch.rand(3)  # where the generator has come to
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return gradients | {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()} | {"drawn": drawn}


def different(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("which", ["half", "all"])
@pytest.mark.parametrize("early_stop", [True, False])
def test_gradients_buffers_and_random_numbers_are_the_same_to_the_bit(which: str, early_stop: bool) -> None:
    plain, model = network(), network()
    turned(model, which)

    with set_checkpoint_early_stop(early_stop):
        assert different(trained(model), trained(plain)) == []
    assert int(model.get_buffer("blocks.0.usual.num_batches_tracked")) == 3


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:`torch.jit")  # torch's own, of its own doing
def test_statistics_are_taken_once_where_torch_compile_gives_up_within_a_block() -> None:
    plain, model = network(), network()
    turned(model, "all")
    model.compile(backend="eager")  # momentum=None reads a number from a tensor, which breaks the graph

    assert different(trained(model), trained(plain)) == []


def test_a_recomputation_that_fails_leaves_the_statistics_in_place() -> None:
    model = network()
    turned(model, "all")
    layer = model.get_submodule("blocks.2.usual")
    assert isinstance(layer, nn.BatchNorm1d)
    before = layer.running_mean
    loss = model(torch.randn(8, 32)).sum()
    seen = copy.deepcopy(layer.state_dict())

    def fails(*_: Any) -> None:
        raise MemoryError("no room")

    handle = model.get_submodule("blocks.2.second").register_forward_pre_hook(fails)
    with pytest.raises(MemoryError):
        torch.autograd.backward(loss)
    handle.remove()

    assert layer.running_mean is before
    assert all(torch.equal(layer.state_dict()[key], value) for key, value in seen.items())


def test_fewer_bytes_are_alive_at_the_peak_the_more_is_checkpointed() -> None:
    def peak(which: str | None) -> int:
        model = network()
        if which is not None:
            turned(model, which)
        inputs = torch.randn(512, 32)
        meter = LiveBytes()
        with meter:
            torch.autograd.backward(model(inputs).square().mean())
        return meter.peak_bytes

    assert peak("all") < 0.6 * peak(None)
    assert peak("all") < peak("half") < peak(None)


def test_nothing_is_checkpointed_where_there_is_no_backward_pass() -> None:
    model = network()
    calls = []
    turned(model, "all")
    model.get_submodule("blocks.0.first").register_forward_hook(lambda *_: calls.append(1))

    with torch.no_grad():
        model(torch.randn(4, 32))
    torch.autograd.backward(model.eval()(torch.randn(4, 32)).sum())
    assert len(calls) == 2  # no second pass in either
    torch.autograd.backward(model.train()(torch.randn(4, 32)).sum())

    assert len(calls) == 4


def test_names_hooks_class_and_signature_stay() -> None:
    model = network()
    names, block = list(model.state_dict()), model.blocks[0]
    seen: list[str] = []
    block.register_forward_hook(lambda *_: seen.append("hook"))
    undone = turned(model, "all")

    model(torch.randn(4, 32)).sum().backward()

    assert seen == ["hook"]
    assert list(model.state_dict()) == names
    assert type(block) is Block
    assert list(inspect.signature(block.forward).parameters) == ["x", "scale"]
    undone.undo()
    assert "forward" not in block.__dict__


def test_a_copy_of_the_model_computes_with_its_own_weights() -> None:
    model = network()
    turned(model, "all")
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()

    trained(other)

    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(is_checkpointed(block) for block in other.blocks)


def test_a_model_is_saved_whole_and_by_its_state() -> None:
    model = network()
    turned(model, "all")
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)

    loaded = torch.load(saved, weights_only=False)

    assert different(trained(loaded), trained(model)) == []
    network().load_state_dict(model.state_dict())


def test_a_forward_that_the_user_had_replaced_is_kept_and_put_back() -> None:
    model = network()
    block, calls = model.blocks[0], []
    original = block.forward

    def mine(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    block.forward = mine
    undone = turned(model, "all")
    model(torch.randn(4, 32)).sum().backward()
    undone.undo()

    assert len(calls) == 2
    assert block.forward is mine


def test_turning_twice_wraps_once() -> None:
    model = network()
    first = turned(model, "all")
    forward = model.blocks[0].forward
    second = turned(model, "all")

    assert model.blocks[0].forward is forward
    second.undo()
    assert is_checkpointed(model.blocks[0])
    first.undo()
    assert not any(is_checkpointed(block) for block in model.blocks)


def test_a_model_that_checkpoints_itself_is_left_alone() -> None:
    model = network()
    object.__setattr__(model, "gradient_checkpointing", True)  # as transformers sets it
    turned(model, "all")

    assert checkpoints_itself(model)
    assert not any(is_checkpointed(block) for block in model.blocks)


# -- the blocks --------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU())
        self.shortcut = nn.Identity() if width == out else nn.Conv2d(width, out, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.body(x) + self.shortcut(x))


class Stage(nn.Module):
    def __init__(self, width: int, out: int, depth: int) -> None:
        super().__init__()
        self.downsample = nn.Conv2d(width, out, 2, 2)
        self.blocks = nn.Sequential(*(Residual(out, out) for _ in range(depth)))


class Layer(nn.Module):
    """A transformer's layer with experts: what repeats within is no block of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16)) for _ in range(4))


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)


class MixtureLayer(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Expert() for _ in range(4))


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer() for _ in range(3))


class Nested(nn.Module):
    """As Hugging Face nests: model.encoder.layer, with a pooler and a head beside."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = nn.ModuleDict({"embeddings": nn.Embedding(10, 16), "encoder": Tower(), "pooler": nn.Linear(16, 16)})
        self.classifier = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2))


def names(model: nn.Module) -> list[str]:
    blocks = repeated_blocks(model)
    return [name for name, module in model.named_modules() if any(module is block for block in blocks)]


def test_the_layers_of_a_gpt_are_its_blocks() -> None:
    path = Path(__file__).parent.parent / "examples" / "gpt.py"
    spec = importlib.util.spec_from_file_location("example_gpt", path)
    assert spec is not None
    assert spec.loader is not None
    gpt = sys.modules["example_gpt"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpt)

    assert names(gpt.build_model()) == ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]


def test_the_blocks_of_all_stages_of_a_resnet_are_found() -> None:
    stages = [nn.Sequential(Residual(w, v), Residual(v, v)) for w, v in ((8, 8), (8, 8), (8, 32))]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *stages, nn.Sequential(nn.Flatten(), nn.Linear(32, 10)))

    assert names(model) == [f"{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1)]


def test_stages_that_are_a_class_are_not_taken_for_blocks() -> None:
    model = nn.Sequential(Stage(3, 8, 2), Stage(8, 16, 3), Stage(16, 32, 2))

    assert len(names(model)) == 7
    assert names(model)[:2] == ["0.blocks.0", "0.blocks.1"]


def test_the_layers_of_torchs_own_encoder_are_found() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    assert names(nn.TransformerEncoder(layer, 3)) == ["layers.0", "layers.1", "layers.2"]


def test_layers_nested_as_hugging_face_does_are_found() -> None:
    assert names(Nested()) == [f"bert.encoder.layer.{index}" for index in range(3)]


def test_layers_are_taken_before_the_experts_within_them() -> None:
    model = nn.ModuleList(MixtureLayer() for _ in range(2))

    assert names(model) == ["0", "1"]


def test_layers_are_taken_before_the_towers_around_them() -> None:
    assert len(names(nn.ModuleDict({"text": Tower(), "image": Tower()}))) == 6


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)),
        nn.Linear(2, 2),
        nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.ReLU())),
    ],
)
def test_an_mlp_has_no_blocks(model: nn.Module) -> None:
    assert names(model) == []


def test_sequentials_side_by_side_are_blocks_where_nothing_better_is() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)), nn.Linear(8, 2))

    assert names(model) == ["0", "1", "2"]

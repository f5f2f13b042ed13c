"""The verdict on models and losses whose right answer is known: what it is, and where it lies."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

import autoaccum
from autoaccum import Verdict
from autoaccum.equivalence.examine import examine

WEIGHTS = torch.tensor([1.0, 2.0, 7.0])
Case = tuple[Callable[[], nn.Module], Callable[..., Any], Callable[[int], Any]]


def mlp(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 3))


def classes(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 6), torch.randint(3, (size,))


def images(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 2, 5, 5), torch.randint(3, (size,))


def ragged(size: int) -> dict[str, torch.Tensor]:
    """Token sequences, padded: labels of -100 and a mask, from 3 to 9 tokens long."""
    ids = torch.randint(20, (size, 9))
    lengths = torch.tensor([9, 3, 5, 8, 4, 6, 3, 7, 9, 4, 3, 5])[torch.arange(size) % 12]
    mask = torch.arange(9) < lengths[:, None]
    return {"ids": ids, "labels": ids.masked_fill(~mask, -100), "mask": mask.long()}


def cross_entropy(model: nn.Module, batch: Any, **options: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], **options)


def low_cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(model, (batch[0].to(torch.bfloat16), batch[1]))


def total(model: nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(model, batch, reduction="sum")


def l2(model: nn.Module) -> torch.Tensor:
    return 0.1 * torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()


def by_class(model: nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(model, batch, weight=WEIGHTS.to(batch[0]))


def dropped(model: nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(model, (functional.dropout(batch[0], 0.2), batch[1]))


def info_nce(model: nn.Module, batch: Any) -> torch.Tensor:
    one = functional.normalize(model(batch[0]), dim=1)
    other = functional.normalize(model(batch[0] + 0.1), dim=1)
    return functional.cross_entropy(one @ other.T / 0.2, torch.arange(len(one)))


def dice(model: nn.Module, batch: Any) -> Any:
    found, wanted = model(batch[0]).sigmoid(), functional.one_hot(batch[1], 3)
    return 1 - 2 * (found * wanted).sum() / (found.sum() + wanted.sum())


def balanced(model: nn.Module, batch: Any) -> Any:
    """Cross entropy with the auxiliary loss of a mixture of experts: products of means over the batch."""
    gates = model(batch[0]).softmax(1)
    chosen = functional.one_hot(gates.argmax(1), 3).to(gates).mean(0)
    return cross_entropy(model, batch) + 3 * (chosen * gates.mean(0)).sum()


def rmse(model: nn.Module, batch: Any) -> Any:
    return (model(batch[0])[:, 0] - batch[1]).square().mean().sqrt()


def diffusion(model: nn.Module, batch: Any) -> torch.Tensor:
    clean = batch[0]
    time = torch.randint(0, 10, (len(clean),), device=clean.device)
    noise = torch.randn_like(clean)
    noisy = clean * (1 - time / 10)[:, None] + noise * (time / 10)[:, None]
    return functional.mse_loss(model(noisy), noise[:, :3])


class Centred(nn.Module):
    """Subtracts the mean over the batch, as no layer of torch does by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        return x - x.mean(0)


class FrozenBatchNorm(nn.BatchNorm1d):
    """Stays in eval mode whatever the model is told."""

    def train(self, mode: bool = True) -> FrozenBatchNorm:
        super().train(False)
        return self


class Rms(nn.Module):
    """Hugging Face's way of normalising: in float32 whatever comes in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = x.to(torch.float32)
        return (low * torch.rsqrt(low.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class InNumpy(torch.autograd.Function):
    """Computes in float32 where torch cannot see it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.from_numpy(x.numpy().astype("f4") @ weight.numpy().astype("f4")).mul(1).to(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        to_weight = torch.from_numpy(x.numpy().astype("f4").T @ gradients[0].numpy().astype("f4"))
        return gradients[0] @ weight.T, to_weight.mul(1).to(x)


class Foreign(nn.Module):
    """A layer by `InNumpy`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> Any:
        return InNumpy.apply(x, self.weight)  # type: ignore[no-untyped-call]


class Low(nn.Linear):
    """A layer that casts down, whatever comes in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.bfloat16(), self.weight.bfloat16(), self.bias.to(torch.bfloat16)).to(x.dtype)


class Spectral(nn.Module):
    """A filter in the frequency domain, with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.head = nn.Parameter(torch.randn(4, dtype=torch.complex64)), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=6))


class Language(nn.Module):
    """A language model with tied weights, if asked for."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.tokens, self.mix, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.mix(self.tokens(ids)).cumsum(1)))
        return out


def token_mean(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def causal_mean(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch["ids"][:, :-1]).flatten(0, 1), batch["labels"][:, 1:].flatten())


def masked_mean(model: nn.Module, batch: Any) -> Any:
    each = functional.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["ids"].flatten(), reduction="none")
    return (each * batch["mask"].flatten()).sum() / batch["mask"].sum()


def token_sum(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    labels = batch["labels"].flatten()
    return functional.cross_entropy(model(batch["ids"]).flatten(0, 1), labels, reduction="sum"), (labels >= 0).sum()


def convolutional(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def normalised() -> nn.Module:
    return convolutional(nn.BatchNorm2d(4))


def frozen() -> nn.Module:
    model = mlp(nn.BatchNorm1d(8))
    model[1].eval()  # type: ignore[index]
    return model


EQUIVALENT: dict[str, tuple[str, Case]] = {
    "mean": ("mean", (mlp, cross_entropy, classes)),
    "sum and count": ("sum", (mlp, lambda m, b: (total(m, b), len(b[1])), classes)),
    "tokens counted": ("sum", (Language, token_sum, ragged)),
    "label smoothing": ("mean", (mlp, lambda m, b: cross_entropy(m, b, label_smoothing=0.1), classes)),
    "batch norm in eval mode": ("mean", (frozen, cross_entropy, classes)),
    "frozen batch norm": ("mean", (lambda: mlp(FrozenBatchNorm(8)), cross_entropy, classes)),
    "layer norm": ("mean", (lambda: mlp(nn.LayerNorm(8)), cross_entropy, classes)),
    "group norm": ("mean", (lambda: convolutional(nn.GroupNorm(2, 4)), cross_entropy, images)),
    "casts to float32": ("mean", (lambda: mlp(Rms()), cross_entropy, classes)),
    "casts to bfloat16": ("mean", (lambda: mlp(Low(8, 8)).bfloat16(), low_cross_entropy, classes)),
    "complex weights": ("mean", (Spectral, cross_entropy, classes)),
    "L2 in a mean": ("mean", (mlp, lambda m, b: cross_entropy(m, b) + l2(m), classes)),
    "tied weights": ("sum", (lambda: Language(tied=True), token_sum, ragged)),
    "one weight": ("mean", (lambda: nn.Linear(1, 1, bias=False), lambda m, b: m(b[0][:, :1]).exp().mean(), classes)),
}  # fmt: skip
DIFFERENT: dict[str, tuple[str, str, Case]] = {
    "sum": ("sum", "the loss", (mlp, total, classes)),
    "token mean": ("token_mean", "the loss", (Language, token_mean, ragged)),
    "token mean, shifted": ("token_mean", "the loss", (Language, causal_mean, ragged)),
    "masked mean": ("token_mean", "the loss", (Language, masked_mean, ragged)),
    "class weights": ("weighted", "the loss", (mlp, by_class, classes)),
    "batch norm": ("coupled", "layer 1 (BatchNorm2d)", (normalised, cross_entropy, images)),
    "own layer": ("coupled", "layer 1.0 (Centred)", (lambda: mlp(nn.Sequential(Centred())), cross_entropy, classes)),
    "contrastive": ("coupled", "the loss", (mlp, info_nce, classes)),
    "dice": ("coupled", "the loss", (mlp, dice, classes)),
    "mixture of experts": ("coupled", "the loss", (mlp, balanced, classes)),
    "root of a mean": ("nonlinear", "the loss", (mlp, rmse, classes)),
    "root of a mean, far away": ("nonlinear", "the loss", (mlp, lambda m, b: rmse(m, (b[0], b[1] * 100)), classes)),
    "L2 in a sum": ("constant_term", "the loss", (mlp, lambda m, b: (total(m, b) + l2(m), len(b[1])), classes)),
    "a mean with its count": ("mean", "the loss", (mlp, lambda m, b: (cross_entropy(m, b), len(b[1])), classes)),
    "a count that is none": ("count", "the loss", (mlp, lambda m, b: (total(m, b), 1), classes)),
    "spectral norm": (
        "stateful", "layer 1.parametrizations.weight.0 (_SpectralNorm)",
        (lambda: mlp(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))), cross_entropy, classes),
    ),
}  # fmt: skip


def judge(case: Case) -> Verdict:
    build, loss, make_batch = case
    torch.manual_seed(0)
    return autoaccum.verify(build(), loss, make_batch)


@pytest.mark.parametrize("name", EQUIVALENT)
def test_what_adds_up_is_equivalent(name: str) -> None:
    kind, case = EQUIVALENT[name]

    found = judge(case)

    assert (found.verdict, found.kind, found.culprit, found.exit_code) == ("equivalent", kind, None, 0), found
    assert found.error is not None
    assert found.error < 1e-13
    assert "in expectation" not in found.sentence
    assert (found.rows, found.split, found.dtype) == (12, (5, 4, 3), "float64")


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_does_not_add_up_is_named(name: str) -> None:
    kind, culprit, case = DIFFERENT[name]

    found = judge(case)

    assert (found.verdict, found.kind, found.culprit) == ("not_equivalent", kind, culprit), found
    assert found.exit_code == 1
    assert found.error is not None
    assert found.error > 1e-5
    assert found.sentence.count(": ") == 1, "what it is: what to do"


def test_the_weights_are_shares_of_what_the_loss_divides_by() -> None:
    torch.manual_seed(0)
    batch = classes(12)

    found = autoaccum.verify(mlp(), by_class, batch)

    sums = [float(WEIGHTS[part].sum()) for part in torch.split(batch[1], [5, 4, 3])]
    assert found.weights == pytest.approx([each / sum(sums) for each in sums])
    assert found.expected_weights == pytest.approx([5 / 12, 4 / 12, 3 / 12])
    assert found.residual is not None
    assert found.residual < 1e-12


@pytest.mark.parametrize(
    ("case", "op"),
    [
        ((lambda: mlp(nn.Dropout(0.3)), cross_entropy, classes), "bernoulli_ in layer 1 (Dropout)"),
        ((mlp, dropped, classes), "bernoulli_ in the loss"),
        ((lambda: mlp(nn.RReLU()), cross_entropy, classes), "rrelu_with_noise in layer 1 (RReLU)"),
    ],
)  # fmt: skip
def test_dropout_is_named_and_the_rest_is_equal_in_expectation(case: Case, op: str) -> None:
    found = judge(case)

    assert found.verdict == "equivalent", found
    assert op in found.random_ops
    assert "in expectation" in found.sentence


def test_other_draws_are_held_at_their_means_and_the_limit_of_that_is_said() -> None:
    found = judge((mlp, diffusion, classes))

    assert found.verdict == "equivalent", found
    assert "randint in the loss" in found.random_ops
    assert "in expectation" not in found.sentence
    assert "held at their means (if randint in the loss decides which rows meet, it was not seen)" in found.sentence


def test_dropout_does_not_hide_a_coupling() -> None:
    found = judge((lambda: mlp(nn.Dropout(0.3), nn.BatchNorm1d(8)), cross_entropy, classes))

    assert (found.kind, found.culprit) == ("coupled", "layer 2 (BatchNorm1d)")
    assert found.buffers == ("2.running_mean", "2.running_var", "2.num_batches_tracked")
    assert found.random_ops == ("bernoulli_ in layer 1 (Dropout)",)


def test_mixing_the_rows_at_random_couples_them() -> None:
    def mixup(model: nn.Module, batch: Any) -> torch.Tensor:
        other = torch.randperm(len(batch[1]))
        return cross_entropy(model, (0.7 * batch[0] + 0.3 * batch[0][other], batch[1]))

    found = judge((mlp, mixup, classes))

    assert (found.verdict, found.kind, found.culprit) == ("not_equivalent", "coupled", "the loss")


def test_draws_outside_of_torch_are_inconclusive() -> None:
    found = judge((mlp, lambda m, b: cross_entropy(m, b) * (1 + random.random()), classes))

    assert (found.verdict, found.exit_code) == ("inconclusive", 2)
    assert "two equal passes differ" in found.sentence


def test_float32_that_cannot_be_helped_is_noticed_and_allowed_for() -> None:
    found = judge((lambda: mlp(Foreign()), cross_entropy, classes))

    assert found.verdict == "equivalent"
    assert found.error is not None
    assert 1e-9 < found.error < 1e-4
    assert "reduced precision" in found.sentence


def test_a_model_that_cannot_run_in_float64_runs_in_float32() -> None:
    table = torch.randn(6, 6)  # no parameter and no buffer: it stays as it is

    found = judge((mlp, lambda m, b: cross_entropy(m, (b[0] @ table, b[1])), classes))

    assert (found.verdict, found.dtype) == ("equivalent", "float32")


def test_a_coupling_behind_weights_of_zero_is_seen() -> None:
    def build() -> nn.Module:
        model = mlp(nn.BatchNorm1d(8))
        nn.init.zeros_(model[1].weight)  # type: ignore[index]
        nn.init.zeros_(model[3].weight)  # type: ignore[index]
        return model

    assert judge((build, cross_entropy, classes)).culprit == "layer 1 (BatchNorm1d)"


def test_a_micro_batch_without_tokens_is_told() -> None:
    def sparse(size: int) -> dict[str, torch.Tensor]:
        batch = ragged(size)
        batch["labels"][9:], batch["mask"][9:] = -100, 0
        return batch

    found = judge((Language, masked_mean, sparse))

    assert (found.verdict, found.kind) == ("not_equivalent", "undefined")
    assert judge((Language, token_sum, sparse)).verdict == "equivalent"


@pytest.mark.parametrize(
    ("loss", "batch", "words"),
    [
        (cross_entropy, (torch.ones(12, 6), torch.ones(12).long()), "6 different rows and has 1"),
        (cross_entropy, (torch.randn(4, 6), torch.ones(4).long()), "6 different rows and has 4"),
        (lambda m, b: m(b[0] * 0 + 1).sum(1).mean(), classes(12), "wrong weights pass too: vary them in make_batch"),
        (lambda m, b: cross_entropy(m, b) * 0, classes(12), "the gradient is zero"),
        (lambda m, b: m(b[0]).softmax(1).sum(1).mean(), classes(12), "the gradient is zero"),
        (lambda m, b: cross_entropy(m, b) * float("inf"), classes(12), "the gradient is not finite"),
        (cross_entropy, "text", "has no rows to split by"),
    ],
)
def test_what_decides_nothing_is_inconclusive(loss: Any, batch: Any, words: str) -> None:
    found = autoaccum.verify(mlp(), loss, batch)

    assert (found.verdict, found.exit_code) == ("inconclusive", 2)
    assert words in found.sentence


def test_noise_made_in_the_loss_is_asked_for_in_the_batch() -> None:
    found = judge((mlp, lambda m, b: m(torch.randn(len(b[1]), 6)).square().sum(1).mean(), classes))

    assert found.verdict == "inconclusive"
    assert "draw noise there" in found.sentence


def test_a_model_too_large_for_memory_is_to_be_made_smaller() -> None:
    def huge(model: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(model, batch) + torch.zeros(1 << 50).sum()

    found = autoaccum.verify(mlp(), huge, classes)

    assert found.verdict == "inconclusive"
    assert "verify a smaller version" in found.sentence


def test_nothing_of_the_users_changes() -> None:
    for seed in (torch.manual_seed, numpy.random.seed, random.seed):
        seed(3)
    model = mlp(nn.BatchNorm1d(8), nn.Dropout())
    cross_entropy(model, classes(8)).backward()  # type: ignore[no-untyped-call]
    model.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad for parameter in model.parameters()]
    copies = [None if gradient is None else gradient.clone() for gradient in gradients]
    states = torch.get_rng_state(), numpy.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]

    autoaccum.verify(model, cross_entropy, classes)

    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (numpy.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    for parameter, gradient, copy in zip(model.parameters(), gradients, copies, strict=True):
        assert parameter.grad is gradient
        assert gradient is not None and copy is not None and torch.equal(gradient, copy)  # noqa: PT018
    assert torch.get_default_dtype() is torch.float32


class Balanced(nn.Linear):
    """Leaves its auxiliary loss behind, as a mixture of experts does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        self.auxiliary = out.square().mean()
        return out


def test_what_a_forward_pass_left_behind_is_no_hindrance() -> None:
    model = mlp(Balanced(8, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    cross_entropy(model, classes(8)).backward()  # type: ignore[no-untyped-call]

    found = autoaccum.verify(model, lambda m, b: cross_entropy(m, b) + m[1].auxiliary, classes)

    assert found.verdict == "equivalent"


def test_a_model_that_cannot_be_copied_is_said() -> None:
    with pytest.raises(autoaccum.UsageError, match=r"the model cannot be copied \(Attempted to use an uninit"):
        autoaccum.verify(nn.LazyLinear(3), cross_entropy, classes)


def test_a_loss_that_uses_another_model_than_it_is_given_is_told_and_leaves_no_gradient() -> None:
    model = mlp()

    found = autoaccum.verify(model, lambda _, batch: cross_entropy(model, (batch[0].float(), batch[1])), classes)

    assert found.verdict == "inconclusive"
    assert "computed from the model it is given" in found.sentence
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_the_loss_holds_is_left_as_it_was() -> None:
    head, norm, queue, generator = nn.Linear(3, 3), nn.BatchNorm1d(3), torch.zeros(3), torch.Generator()
    state = generator.get_state()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        queue.add_(1)
        return functional.cross_entropy(norm(head(model(batch[0]).float())), batch[1])

    def make_batch(size: int) -> Any:
        torch.rand(1, generator=generator)
        return classes(size)

    autoaccum.verify(mlp(), loss, make_batch)

    assert all(parameter.grad is None for parameter in (*head.parameters(), *norm.parameters()))
    assert norm.num_batches_tracked == 0
    assert queue.tolist() == [0, 0, 0]
    assert torch.equal(generator.get_state(), state)


def test_a_model_in_eval_mode_is_judged_as_it_will_be_trained() -> None:
    assert judge((lambda: mlp(nn.BatchNorm1d(8)).eval(), cross_entropy, classes)).kind == "coupled"


@pytest.mark.parametrize("size", [6, 7, 8, 9, 10, 11])
def test_small_batches_do(size: int) -> None:
    torch.manual_seed(0)

    assert examine(mlp(), cross_entropy, classes(size)).verdict == "equivalent"
    assert examine(mlp(nn.BatchNorm1d(8)), cross_entropy, classes(size)).culprit == "layer 1 (BatchNorm1d)"
    assert examine(mlp(), lambda m, b: (total(m, b) + l2(m), len(b[1])), classes(size)).kind == "constant_term"


def test_an_error_of_the_users_own_code_is_his_own_live() -> None:
    with pytest.raises(KeyError, match="width"):
        autoaccum.verify(mlp(), lambda m, b: vars(m)["width"], classes)


@pytest.mark.parametrize("wrong", [(3, cross_entropy, classes), (mlp(), None, classes), ("model.py", cross_entropy, 1)])
def test_a_wrong_call_says_what_to_give(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(autoaccum.UsageError, match=r"give verify|not a torch\.nn\.Module"):
        autoaccum.verify(*wrong)


def test_a_verdict_goes_through_json() -> None:
    found = judge(DIFFERENT["batch norm"][2])

    assert Verdict.from_dict(asdict(found)) == found

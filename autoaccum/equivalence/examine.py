"""Does accumulating micro-batches equal the full batch, for this model and this loss?

The real training step's gradient of unequal micro-batches is held against the full batch's, in float64 on
the CPU, where the parameters are and a little beside it. If they differ, the weights by which the
micro-batches' gradients would make the full one tell what the loss is, and the layers who couples samples.
"""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from autoaccum import batch as batches
from autoaccum.equivalence.culprits import coupling_layer
from autoaccum.equivalence.gradients import Bench, Gradient, with_tensors
from autoaccum.equivalence.hypotheses import constant_term, counts, mismatch, relative, shares, solve
from autoaccum.equivalence.randomness import label
from autoaccum.equivalence.verdicts import Verdict, right, wrong
from autoaccum.errors import AutoaccumError, NothingFits, UsageError, WorkloadError
from autoaccum.oom import is_oom
from autoaccum.training.stepper import Loss
from autoaccum.trial import Subject

ROWS = 12
_SPLITS = {6: (4, 2), 7: (5, 2), 8: (5, 3), 9: (4, 3, 2), 10: (5, 3, 2), 11: (5, 4, 2), 12: (5, 4, 3)}
_EXACT, _REDUCED = 1e-9, 1e-4  # relative errors that rounding makes, in float64 and in less
_SMALLER = "verify a smaller version of it, with fewer and narrower layers of the same kinds"


def unclear(sentence: str, **facts: Any) -> Verdict:
    """Give the verdict that there is none."""
    return Verdict(verdict="inconclusive", sentence=sentence, **facts)


def examine(model: torch.nn.Module, loss: Loss, batch: Any) -> Verdict:
    """Give the verdict on `model` and `loss` with up to 12 rows of `batch`; the model is used up."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return unclear("the model has no parameters to train: verify it as you train it")
    try:
        size = min(ROWS, batches.rows(batch))
        batch = batches.tile(batches.to_device(batch, torch.device("cpu")), size)
    except UsageError as error:
        return unclear(str(error))
    different = len(set(_fingerprints(batch, size)))
    if different < min(_SPLITS):
        return unclear(f"the batch has to have {min(_SPLITS)} different rows and has {different}: give varied data")
    _into_training(model)
    for dtype in (torch.float64, torch.float32):
        try:
            with _computing_in(dtype):
                cast = partial(_cast, dtype=dtype)
                ours = model.to("cpu")._apply(cast)  # type: ignore[no-untyped-call]
                rows = with_tensors(batch, cast)
                return _compare(Bench(ours, loss, dtype), rows, _SPLITS[size], dtype)
        except Exception as error:
            if isinstance(error, NothingFits) or is_oom(error):
                continue
            if isinstance(error, AutoaccumError) or dtype is torch.float32:
                raise
    return unclear(f"the model is too large for this machine's memory: {_SMALLER}")


def examine_subject(subject: Subject) -> Verdict:
    """Give the verdict on what a worker would train; raise, with its place, what the user's code raises."""
    try:
        parts = subject.parts()
        subject.begin()
        subject.doing = f"make_batch({ROWS})"
        batch = parts.make_batch(ROWS)
        subject.doing = "verifying on the CPU"
        return examine(parts.model, parts.loss, batch)
    except AutoaccumError:
        raise
    except BaseException as error:
        if is_oom(error):
            return unclear(f"the model is too large for this machine's memory: {_SMALLER}")
        first = str(error).strip().partition("\n")[0][:300]
        what = f"called sys.exit({error.code})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {first}"
        details = "".join(traceback.format_exception(error))
        raise WorkloadError(f"{subject.place(error) or subject.doing}: {what}", details=details) from error


def _compare(bench: Bench, batch: Any, sizes: tuple[int, ...], dtype: torch.dtype) -> Verdict:
    full, again = bench.gradient(batch), bench.gradient(batch, seed=1)
    near = _REDUCED if bench.still.reduced or dtype is torch.float32 else _EXACT
    random_ops = tuple(bench.still.random_ops)
    facts: dict[str, Any] = {"rows": sum(sizes), "split": sizes, "dtype": str(dtype).removeprefix("torch.")}
    facts |= {"random_ops": random_ops, "buffers": tuple(bench.changed)}
    if not bool(full.vector.isfinite().all()):
        return unclear("the gradient is not finite: give data and weights with which the loss is", **facts)
    if not float(full.vector.norm()) > near * 1e-3:  # below it there is nothing but rounding
        return unclear(
            "the gradient is zero: is the loss computed from the model it is given, and not at rest?", **facts
        )
    if not relative(full.vector - again.vector, full.vector) <= near:
        drawn = ", ".join(bench.still.unheld) or "something other than torch's random operations or buffers"
        return unclear(f"two equal passes differ, by {drawn}: verify without it, for it cannot be held still", **facts)

    parts = list(batches.split(batch, sizes))
    micros = [bench.gradient(part) for part in parts]
    vectors = [micro.vector for micro in micros]
    if not all(bool(vector.isfinite().all()) for vector in vectors):
        said = wrong("undefined", "the loss", pair=full.count is not None)
        return Verdict(verdict="not_equivalent", sentence=said, kind="undefined", culprit="the loss", **facts)
    weights, residual, _ = solve(full.vector, vectors)
    expected = _expected(full, sizes)
    error = _error(bench, full, parts)
    with bench.moved():
        moved_error = _error(bench, bench.gradient(batch), parts)
    beside = moved_error < float("inf")  # the loss may be undefined there
    error = max(error, moved_error) if beside else error
    facts |= {"error": error, "residual": residual, "weights": weights, "expected_weights": expected}
    if error <= near:
        if any(mismatch(full.vector, vectors, other) <= near for other in _others(micros, expected)):
            where = "in make_batch, and draw noise there rather than in the loss" if random_ops else "in make_batch"
            return unclear(
                f"the rows give the same gradient, so that wrong weights pass too: vary them {where}", **facts
            )
        kind = "mean" if full.count is None else "sum"
        said = right(kind, random_ops=random_ops, reduced=error > _EXACT, buffers=facts["buffers"])
        return Verdict(verdict="equivalent", sentence=said, kind=kind, **facts)
    with bench.moved() if beside else nullcontext():
        kind, culprit = _diagnose(bench, batch, parts, weights, near)
    said = wrong(kind, culprit, pair=full.count is not None)
    return Verdict(verdict="not_equivalent", sentence=said, kind=kind, culprit=culprit, **facts)


def _diagnose(
    bench: Bench, batch: Any, parts: Sequence[Any], elsewhere: Sequence[float], near: float
) -> tuple[str, str]:
    """Say what the loss is and where that lies; `elsewhere` are the weights at other parameters."""
    sizes = [batches.rows(part) for part in parts]
    full, micros = bench.gradient(batch), [bench.gradient(part) for part in parts]
    vectors = [micro.vector for micro in micros]
    tallies = [micro.count or 0.0 for micro in micros]
    if mismatch(full.vector, vectors, _expected(full, sizes)) <= near:
        if full.count is not None and abs(sum(tallies) - full.count) > near * abs(full.count):
            return "count", "the loss"
        name = next(iter(bench.changed), "").rpartition(".")[0]
        return "stateful", label(name, bench.model.get_submodule(name))
    known = [("sum", [1.0] * len(parts)), ("mean", shares(sizes)), ("mean", shares(tallies))]
    known += [("token_mean", shares(each)) for each in counts(parts)]
    for kind, weights in known:
        if mismatch(full.vector, vectors, weights) <= near:
            return kind, "the loss"
    half = sum(sizes) // 2
    halves = [bench.gradient(part).vector for part in batches.split(batch, (half, sum(sizes) - half))]
    if constant_term(full.vector, vectors, halves, near):
        return "constant_term", "the loss"
    found, residual, unique = solve(full.vector, vectors)
    if residual > near or not unique:
        layer = coupling_layer(bench, batch, near)
        return ("coupled" if unique or layer else "unknown"), layer or "the loss"
    stable = all(abs(one - other) < max(1e-6, 10 * near) for one, other in zip(found, elsewhere, strict=True))
    return ("weighted" if stable else "nonlinear"), "the loss"


def _error(bench: Bench, full: Gradient, parts: Sequence[Any]) -> float:
    """Give how far the real step's gradient is from the full batch's, relatively."""
    return relative(bench.accumulated(parts) - full.of_mean, full.of_mean)


def _expected(full: Gradient, sizes: Sequence[int]) -> tuple[float, ...]:
    return shares(sizes) if full.count is None else (1.0,) * len(sizes)


def _others(micros: Sequence[Gradient], expected: Sequence[float]) -> Iterator[Sequence[float]]:
    """Give weights that are wrong: those of the mean of means, and of a sum of means."""
    tallies = [micro.count for micro in micros]
    total = sum(tally or 0.0 for tally in tallies)
    for weight in (1 / len(micros), 1.0):
        weights = [weight * total / tally if tally else weight for tally in tallies]
        if any(abs(one - other) > 1e-6 for one, other in zip(weights, expected, strict=True)):
            yield weights


def _into_training(model: torch.nn.Module) -> None:
    """Put the model into training mode, as a training loop does, but for layers that were frozen in it."""
    frozen = [module for module in model.modules() if not module.training] if model.training else []
    model.train()
    for module in frozen:
        module.training = False


def _fingerprints(batch: Any, size: int) -> Iterator[bytes]:
    tensors = [tensor.detach().contiguous() for _, tensor in batches.tensors(batch) if tensor.dim() > 0]
    for row in range(size):
        yield b"".join(tensor[row : row + 1].reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


@contextmanager
def _computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Have tensors that the user's code makes in the passes be of `dtype`, and nothing compiled."""
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, before)
        torch.set_default_dtype(dtype)
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def on_cpu(model: torch.nn.Module) -> torch.nn.Module:
    """Give a copy of `model` on the CPU, without one on its own device first; shared weights stay shared."""
    memo: dict[int, Any] = {}
    try:
        for parameter in model.parameters():
            value = parameter.detach().to("cpu", copy=True)
            memo[id(parameter)] = torch.nn.Parameter(value, requires_grad=parameter.requires_grad)
        for module in model.modules():
            # Also what a forward pass left behind, such as an auxiliary loss: with its graph it cannot be copied.
            left = [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
            for tensor in (*module._buffers.values(), *left):
                if tensor is not None:
                    memo[id(tensor)] = tensor.detach().to("cpu", copy=True)
        return copy.deepcopy(model, memo)
    except Exception as error:
        why = str(error).partition("\n")[0].partition(". ")[0]
        raise UsageError(f"the model cannot be copied ({why}): give a plain one, or a file that builds it") from error

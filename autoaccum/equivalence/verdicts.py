"""The verdict of `autoaccum verify`: whether accumulating equals the full batch, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoaccum.records import Record

Word = Literal["equivalent", "not_equivalent", "inconclusive"]

_EXIT_CODES: dict[Word, int] = {"equivalent": 0, "not_equivalent": 1, "inconclusive": 2}
_DROPOUTS = ("bernoulli", "native_dropout", "_fused_dropout", "_scaled_dot_product", "rrelu")  # for each sample alone
_COUNTED = "return (loss_sum, count) instead"
_NORMS = "use GroupNorm or LayerNorm in its place, or freeze its statistics with .eval()"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict(Record):
    """Whether accumulated micro-batches give the full batch's gradient, and what that rests on.

    The weights are those of the micro-batches' gradients in the full batch's, found by least squares
    (`weights`) and as the loss's contract has them (`expected_weights`): shares of the rows for a mean,
    ones for the loss_sum of (loss_sum, count).
    """

    verdict: Word
    sentence: str
    kind: str | None = None  # what the loss is: mean, sum, token_mean, weighted, nonlinear, coupled, constant_term, ...
    culprit: str | None = None  # "layer 1 (BatchNorm2d)", or "the loss"
    error: float | None = None  # of the accumulated gradient, relative to the full batch's
    residual: float | None = None  # what no weights can explain, relative to the full batch's gradient
    weights: tuple[float, ...] = ()
    expected_weights: tuple[float, ...] = ()
    buffers: tuple[str, ...] = ()  # that a forward pass changes: once per micro-batch
    random_ops: tuple[str, ...] = ()  # held at their means for the comparison
    rows: int = 0
    split: tuple[int, ...] = ()
    dtype: str | None = None

    @property
    def exit_code(self) -> int:
        """The command line's answer: 0 equivalent, 1 not equivalent, 2 inconclusive."""
        return _EXIT_CODES[self.verdict]

    @property
    def line(self) -> str:
        """The answer in one line."""
        return f"{self.verdict.replace('_', ' ')}  {self.sentence}"


def right(kind: str, *, random_ops: tuple[str, ...], reduced: bool, buffers: tuple[str, ...]) -> str:
    """Give the sentence for a loss whose micro-batches add up."""
    what = {"sum": "the loss is a sum with its count", "mean": "the loss is a mean over the samples"}[kind]
    sentence = f"accumulated micro-batches give the full batch's gradient: {what}"
    others = [op for op in random_ops if not op.startswith(_DROPOUTS)]
    if others:
        sentence += f", with its draws held at their means (if {others[0]} decides which rows meet, it was not seen)"
    elif random_ops:
        sentence = f"accumulated micro-batches give the full batch's gradient in expectation: {what}, and uses dropout"
    if reduced:
        sentence += " (to 1e-4: it computes in reduced precision)"
    if buffers:
        sentence += f"; {_count(buffers, 'buffer')} of the model will see each micro-batch by itself"
    return sentence


def wrong(kind: str, culprit: str, *, pair: bool) -> str:
    """Give the sentence for a loss whose micro-batches do not add up: what it is, and what to do."""
    if kind == "coupled" and culprit != "the loss":
        mend = (
            _NORMS
            if "BatchNorm" in culprit
            else "make it work on each sample by itself, or train it without accumulation"
        )
        return f"{culprit} couples the samples of a batch, and sees one micro-batch at a time: {mend}"
    if pair and kind in ("mean", "token_mean"):
        return "loss_sum of (loss_sum, count) is a mean already: return loss_sum as a sum, or the mean alone"
    return {
        "sum": f"the loss is a sum, and one number is taken for a mean: {_COUNTED}, or divide it by the number of rows",
        "token_mean": "the loss is a mean over tokens, and micro-batches hold unequal numbers of them: "
        "return (loss_sum, count) instead, with the number of tokens that count",
        "weighted": "the loss is a mean over something other than the rows, such as class weights: "
        "return (loss_sum, count) instead, with what it divides by as the count",
        "nonlinear": "the loss is not linear in the samples, such as the root of a mean: "
        "accumulate its mean before the root, or train it without accumulation",
        "coupled": "the loss adds up terms that are averaged differently (a mean and a sum, two masks), or couples the "
        "samples of a batch (contrastive, Dice, load balancing): bring all terms over one count and return "
        "(loss_sum, count), or train it without accumulation",
        "constant_term": "the loss adds a term that does not depend on the samples, such as an L2 penalty, "
        "to a sum, and so once for each micro-batch: add it times the count, or to a mean",
        "undefined": "the loss of a micro-batch is not finite, as a mean over no tokens is, where the full batch's is: "
        "return (loss_sum, count) instead, with the number of tokens that count",
        "count": "the count of (loss_sum, count) is not the sum of its micro-batches' counts: "
        "return what the sum runs over, such as rows or tokens",
        "stateful": f"{culprit} changes its buffers in every forward pass and computes with them, so that each "
        "micro-batch finds another model: freeze it, or train it without accumulation",
    }.get(kind, "accumulated micro-batches do not give the full batch's gradient: train it without accumulation")


def _count(things: tuple[str, ...], noun: str) -> str:
    return f"{len(things)} {noun}{'s' if len(things) > 1 else ''}"

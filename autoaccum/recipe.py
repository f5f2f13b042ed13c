"""What a plan means for the rest of the recipe: learning rate, warm-up, and whether accumulating is the best answer.

Short, and no more than is known. Splitting a batch changes nothing; another effective batch does, and how much the
learning rate should follow is known for SGD and for Adam, under conditions that are stated with the rule.
"""

from __future__ import annotations

import math

from autoaccum.plans import Plan
from autoaccum.records import MemoryModel, ModelInfo
from autoaccum.units import format_bytes

_SGD = {"SGD", "ASGD"}
_ADAM = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adam8bit", "AdamW8bit", "PagedAdamW8bit"}
_MANY_STEPS = 8
_VERY_MANY_STEPS = 32
_WORTH_SAYING = 0.1  # of the peak
_LOW_PRECISION = {"bfloat16": 4, "float16": 4}  # steps from which the rounding of sums is worth a word


def advice(
    plan: Plan,
    model: ModelInfo | None,
    memory: MemoryModel | None,
    reference_batch: int | None,
    largest_ok: int | None = None,
) -> list[str]:
    """Give what the user should change in the recipe, and what not, a sentence or two for each."""
    said = [learning_rate(plan.effective_batch, reference_batch, model)]
    kept = 0 if model is None or plan.accumulation_steps == 1 else model.gradient_bytes
    if kept > _WORTH_SAYING * (plan.peak_bytes or math.inf):
        said.append(
            f"the price of accumulating: gradients stay in memory between micro-steps, {format_bytes(kept)} "
            f"of the peak of {format_bytes(plan.peak_bytes or 0)}"
        )
    if largest_ok is not None and largest_ok >= 2 * plan.micro_batch:
        return said  # the many steps were chosen for their speed
    return [*said, *fewer_steps(plan, memory)]


def learning_rate(target_batch: int, reference_batch: int | None, model: ModelInfo | None) -> str:
    """Say what the effective batch means for the learning rate of a recipe made for `reference_batch`."""
    if reference_batch is None:
        return (
            f"learning rate, warm-up and schedule stay as your recipe for batch {target_batch} has them, counted in "
            f"updates: splitting changes nothing (if it is for another batch, give --reference-batch)"
        )
    if reference_batch == target_batch:
        return (
            f"the effective batch is that of the recipe ({target_batch}): leave learning rate, warm-up and schedule as "
            f"they are, counted in updates"
        )
    factor = target_batch / reference_batch
    start = f"the batch changes from {reference_batch} to {target_batch} ({factor:.3g} times): "
    fewer = f"lengths that are counted in updates are divided by {factor:.3g}"
    optimizer = "" if model is None else model.optimizer
    if optimizer in _SGD:
        warm = ", warming up from the old rate over the first epochs" if factor > 1 else ""
        return f"{start}multiply SGD's learning rate by {factor:.3g}{warm} (linear rule, arXiv 1706.02677); {fewer}"
    if optimizer in _ADAM:
        return start + _adam(factor, optimizer, None if model is None else model.beta1) + f"; {fewer}"
    name = optimizer or "this optimizer"
    return f"{start}no rule is known for {name}, tune the learning rate again; {fewer}"


def _adam(factor: float, optimizer: str, beta1: float | None) -> str:
    rule = f"multiply {optimizer}'s learning rate by {math.sqrt(factor):.3g} (square-root rule, arXiv 2205.10287)"
    if beta1 is None:
        return rule
    moved = 1 - factor * (1 - beta1)
    if moved < 1e-6:
        return (
            f"the square-root rule for {optimizer} (arXiv 2205.10287) does not reach that far with beta1 {beta1:g}: "
            f"tune the learning rate again, starting below {math.sqrt(factor):.3g} times the old one"
        )
    return f"{rule} and set beta1 to {moved:.3g} (1 - beta2 is multiplied by {factor:.3g} likewise)"


def fewer_steps(plan: Plan, memory: MemoryModel | None) -> list[str]:
    """Say what would serve better than many steps, where there are many."""
    if plan.accumulation_steps < _MANY_STEPS:
        return []
    said = []
    if memory is not None:
        activations = memory.bytes_per_sample * plan.micro_batch
        resident = memory.device_bytes(plan.micro_batch) - activations
        shares = f"activations take {format_bytes(activations)} of the peak and all else {format_bytes(resident)}"
        if activations > resident:
            said.append(
                f"{plan.accumulation_steps} steps are many; {shares}: activation checkpointing would make room for "
                f"larger micro-batches, for about one more forward pass"
            )
        else:
            said.append(
                f"{plan.accumulation_steps} steps are many; {shares}: bf16 weights, an optimizer with less state or "
                f"sharding would make more room than checkpointing"
            )
    if plan.accumulation_steps >= _VERY_MANY_STEPS:
        said.append(
            "with so many steps a smaller effective batch may serve as well: language models on one device have been "
            "trained so, with Adam's beta2 moved closer to 1 (arXiv 2507.07101)"
        )
    return said


def low_precision(plan: Plan, model: ModelInfo | None) -> list[str]:
    """Give the warning for gradients that are added up in half precision over several steps."""
    dtype = "" if model is None else model.gradient_dtype
    if plan.accumulation_steps < _LOW_PRECISION.get(dtype, plan.accumulation_steps + 1):
        return []
    return [
        f"gradients are added up in {dtype} over {plan.accumulation_steps} micro-steps, which rounds away small ones "
        f"(docs/training.md has figures): keep the weights in float32 under autocast, or take fewer steps"
    ]

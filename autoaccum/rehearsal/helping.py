"""What would help most where a plan needs several steps: each thing is rehearsed, none is guessed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from autoaccum.anatomy.record import Anatomy
from autoaccum.errors import WorkloadError
from autoaccum.rehearsal.bands import Band
from autoaccum.rehearsal.cards import Card
from autoaccum.rehearsal.company import Company
from autoaccum.rehearsal.record import Row
from autoaccum.rehearsal.variants import Variant, parse
from autoaccum.units import format_bytes

_USUAL = "checkpoint,bf16"
_LOSS = "fused_loss"
_MUCH = 0.1  # of what is allocated: from here on the loss is worth a look
_WORTH = 0.95  # of the peak: what saves less is no help


def what_helps(
    rows: Sequence[Row], cards: Sequence[Card], band: Band, anatomy: Anatomy | None, company: Company
) -> Iterator[str]:
    """Say what would help most on the first card whose plan needs several steps."""
    row = next((each for each in rows if each.plan and each.plan.accumulation_steps > 1 and not each.what_if), None)
    if row is None or row.plan is None:
        return
    asked = [each for each in rows if each.gpu == row.gpu and each.what_if]
    if asked:
        yield from _of_those_asked_for(row, asked)
        return
    size, before = row.plan.micro_batch, row.plan.peak_bytes or 0
    card = next(each for each in cards if each.key == row.gpu)
    peaks = sorted(_peaks(card, size, band, anatomy, company))
    saving = [(peak, variant) for peak, _, variant in peaks if peak <= before * _WORTH]
    if not saving:
        return
    (peak, best), *others = saving
    more = "".join(f", {variant.words} {format_bytes(each)}" for each, variant in others)
    names = ",".join(variant.name for _, variant in saving)
    yield (
        f"what helps most on {row.name}: with {best.words} micro-batch {size} would hold {format_bytes(peak)} "
        f"instead of {format_bytes(before)}{more}; --what-if {names} gives the plans"
    )


def _peaks(
    card: Card, size: int, band: Band, anatomy: Anatomy | None, company: Company
) -> Iterator[tuple[int, str, Variant]]:
    """Give the peak of the plan's size with each thing that can be tried here."""
    of_loss = sum(part.size_bytes for part in anatomy.modules if part.name == "loss") if anatomy else 0
    names = f"{_USUAL},{_LOSS}" if anatomy and of_loss > _MUCH * anatomy.allocated_bytes else _USUAL
    for variant in parse(names):
        fitting = company.fitting(card, band, variant)
        if fitting.obstacle() is None:
            with suppress(WorkloadError):  # nobody asked for it
                yield fitting.forecast(size).peak_bytes, variant.name, variant


def _of_those_asked_for(row: Row, asked: Sequence[Row]) -> Iterator[str]:
    planned = [(each.plan.accumulation_steps, each.plan.peak_bytes or 0, each) for each in asked if each.plan]
    if not planned or row.plan is None:
        return
    steps, peak, best = min(planned, key=lambda each: each[:2])
    words = parse(best.what_if)[0].words
    if steps < row.plan.accumulation_steps:
        fewer = f"{steps} step{'s' if steps > 1 else ''} instead of {row.plan.accumulation_steps}"
        yield f"what helps most on {row.name}, of what was tried: {words}, {fewer}"
    else:
        yield f"nothing of what was tried saves a step on {row.name}; {words} holds least, {format_bytes(peak)}"

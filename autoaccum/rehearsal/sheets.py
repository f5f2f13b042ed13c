"""The rows of a rehearsal as a table that people read. Pure."""

from __future__ import annotations

from autoaccum.rehearsal.record import Rehearsal, Row
from autoaccum.rehearsal.variants import parse
from autoaccum.report.sheets import Cell, Sheet, sheet_of
from autoaccum.units import format_bytes

_COLUMNS = ("gpu", "memory", "what if", "micro-batch", "steps", "peak", "9 in 10", "headroom", "next needs")
_TEXT = (0, 2)


def plans_sheet(rehearsal: Rehearsal) -> Sheet:
    """Give a row for each GPU, and for each change that was tried on it."""
    return sheet_of("Plans", _COLUMNS, [_cells(row) for row in rehearsal.rows], text=_TEXT)


def without_plans(rehearsal: Rehearsal) -> list[tuple[str, str]]:
    """Give the GPUs that have no plan, with the reason: those that share one together."""
    reasons: dict[str, list[str]] = {}
    for row in rehearsal.rows:
        if row.plan is None:
            named = f"{row.gpu} with {parse(row.what_if)[0].words}" if row.what_if else row.gpu
            reasons.setdefault(row.message, []).append(named)
    return [(", ".join(names), reason) for reason, names in reasons.items()]


def _cells(row: Row) -> list[Cell]:
    plan = row.plan
    return [
        Cell(row.gpu),
        _size(row.total_bytes),
        Cell(parse(row.what_if)[0].words if row.what_if else ""),
        Cell("-") if plan is None else Cell(plan.sizes, plan.micro_batch),
        Cell("") if plan is None else Cell(str(plan.accumulation_steps), plan.accumulation_steps),
        _size(None if plan is None else plan.peak_bytes),
        Cell(_between(row.peak_low_bytes, row.peak_high_bytes)),
        _size(None if plan is None else plan.headroom_bytes),
        Cell("" if row.next_needed_bytes is None else f"{row.next_micro_batch}: {format_bytes(row.next_needed_bytes)}"),
    ]


def _between(low: int | None, high: int | None) -> str:
    """Give a band, its unit once where both ends have the same."""
    if low is None or high is None:
        return ""
    first, last = format_bytes(low), format_bytes(high)
    return f"{first.split()[0]} to {last}" if first.split()[1] == last.split()[1] else f"{first} to {last}"


def _size(value: int | None) -> Cell:
    return Cell("") if value is None else Cell(format_bytes(value), value)

"""Two runs side by side, and gates on how one has changed against the other: for CI. Pure.

A gate is a figure, < or >, and a number: "peak_bytes>+5%" fails where the peak has grown by more than 5 %,
"accumulation_steps>+0" where there are more steps than before, "samples_per_second<100" below that value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from autoaccum.errors import UsageError
from autoaccum.knobs.names import of_options, words
from autoaccum.records import Outcome, Record
from autoaccum.report.record import Report
from autoaccum.tuning.results import Fate
from autoaccum.units import did_you_mean, format_bytes, parse_bytes

_GATE = re.compile(r"\s*([a-z_]+)\s*(>=|<=|>|<)\s*([+-]?)\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*(%|[A-Za-z]+)?\s*")


def _of_plan(name: str) -> Callable[[Report], float | None]:
    return lambda report: None if report.plan is None else getattr(report.plan, name)


def _joules(report: Report) -> float | None:
    row = None if report.tuning is None else report.tuning.trial(report.tuning.best)
    return None if row is None else row.joules_per_sample


FIGURES: dict[str, Callable[[Report], float | None]] = {
    "micro_batch": _of_plan("micro_batch"),
    "accumulation_steps": _of_plan("accumulation_steps"),
    "effective_batch": _of_plan("effective_batch"),
    "peak_bytes": _of_plan("peak_bytes"),
    "headroom_bytes": _of_plan("headroom_bytes"),
    "samples_per_second": _of_plan("samples_per_second"),
    "joules_per_sample": _joules,
    "trials": lambda report: len(report.samples),
    "ooms": lambda report: sum(sample.outcome is Outcome.OOM for sample in report.samples),
    "tuning_trials": lambda report: (
        None if report.tuning is None else sum(row.outcome is not Fate.INFEASIBLE for row in report.tuning.trials)
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate(Record):
    """A condition under which a comparison fails."""

    text: str
    figure: str
    sign: str  # ">", "<", ">=" or "<="
    number: float
    kind: str  # "share": of the first run's figure; "change": against it; "value": of the second run alone

    def broken(self, before: float | None, after: float | None) -> str | None:
        """Say why the gate fails, or None; a figure that was not measured fails: it cannot be seen to hold."""
        lacking = [name for name, value in (("first", before), ("second", after)) if value is None]
        if self.kind == "value":
            lacking = [name for name in lacking if name == "second"]
        if lacking or after is None:
            return f"{self.text}: {self.figure} was not measured in the {' and the '.join(lacking)} run"
        found = after if self.kind == "value" else after - (before or 0)
        limit = self.number * abs(before or 0) if self.kind == "share" else self.number
        holds = {">": found > limit, "<": found < limit, ">=": found >= limit, "<=": found <= limit}[self.sign]
        if not holds:
            return None
        if self.kind == "value":
            return f"{self.text}: it is {shown(self.figure, after)}"
        return f"{self.text}: {shown(self.figure, before)} became {shown(self.figure, after)}{_share(before, after)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison(Record):
    """Two runs: each figure of both, where they are not alike, and the gates that fail."""

    figures: dict[str, tuple[float | None, float | None]]
    differences: tuple[str, ...]
    broken: tuple[str, ...]


def parse_gates(text: str) -> list[Gate]:
    """Give the gates that stand in `text`, separated by commas; raise for what is none.

    >>> [gate.kind for gate in parse_gates("peak_bytes>+5%, samples_per_second<-5%, peak_bytes>20GiB")]
    ['share', 'share', 'value']
    """
    return [_parse(part) for part in text.split(",")]


def compare(before: Report, after: Report, gates: list[Gate]) -> Comparison:
    """Compare two runs."""
    figures = {name: (give(before), give(after)) for name, give in FIGURES.items()}
    broken = (gate.broken(*figures[gate.figure]) for gate in gates)
    return Comparison(
        figures=figures,
        differences=tuple(_differences(before, after)),
        broken=tuple(text for text in broken if text is not None),
    )


def shown(figure: str, value: float | None) -> str:
    """Give a figure as people read it."""
    if value is None:
        return "-"
    return format_bytes(value) if figure.endswith("_bytes") else f"{value:.4g}"


def _share(before: float | None, after: float | None) -> str:
    return f" ({(after - before) / abs(before):+.1%})" if before and after is not None else ""


def change(before: float | None, after: float | None) -> str:
    """Give by how much a figure has changed."""
    if before is None or after is None:
        return ""
    return "=" if before == after else _share(before, after).strip(" ()") or f"{after - before:+.4g}"


def _parse(text: str) -> Gate:
    match = _GATE.fullmatch(text)
    if match is None:
        raise UsageError(f'"{text.strip()}" is no gate: write one such as peak_bytes>+5% or samples_per_second<-5%')
    figure, sign, plus, number, unit = match.groups()
    if figure not in FIGURES:
        meant = did_you_mean(figure, FIGURES)
        raise UsageError(f'there is no figure "{figure}" to compare: {meant}known are {", ".join(FIGURES)}')
    if unit == "%" and not plus:
        raise UsageError(
            f'"{text.strip()}" says by how much, and not whether more or less: write +{number}% or -{number}%'
        )
    try:
        size = float(number)
    except ValueError:
        size = math.inf
    if not math.isfinite(size):
        raise UsageError(f'"{text.strip()}" has no number: {number}')
    if unit == "%":
        size /= 100
    elif unit:
        if not figure.endswith("_bytes"):
            raise UsageError(f'"{text.strip()}" has a unit, and {figure} has none: write {figure}{sign}{plus}{number}')
        size = parse_bytes(f"{number}{unit}") if size else size
    kind = "share" if unit == "%" else "change" if plus else "value"
    return Gate(text=text.strip(), figure=figure, sign=sign, number=-size if plus == "-" else float(size), kind=kind)


def _differences(before: Report, after: Report) -> list[str]:
    """Say what makes the two runs hard to compare."""

    def of(report: Report) -> dict[str, object]:
        return {
            "target batch": report.target_batch,
            "world size": report.world_size,
            "device": None if report.device is None else report.device.name,
            "budget": None if report.budget is None else format_bytes(report.budget.limit_bytes),
            "file": report.request.workload_digest[:12] if report.request is not None else None,
            "torch": report.environment.get("torch"),
            "knobs": None if report.plan is None else ", ".join(words(of_options(report.plan.options))) or "none",
            "status": str(report.status),
        }

    first, second = of(before), of(after)
    told = [name for name in first if first[name] is not None and second[name] is not None]
    return [f"{name}: {first[name]} and {second[name]}" for name in told if first[name] != second[name]]

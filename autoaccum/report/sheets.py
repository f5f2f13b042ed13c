"""The tables that people read, in the page and in the terminal: cells as text, each with what it is sorted by. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoaccum.anatomy.record import Anatomy
from autoaccum.knobs.names import of_options, words
from autoaccum.pictures.memory import parts_of
from autoaccum.plans import Plan
from autoaccum.records import Sample
from autoaccum.report.record import Report
from autoaccum.tuning.results import Fate, Measurement
from autoaccum.units import format_bytes


@dataclass(frozen=True, slots=True)
class Cell:
    """What is read, and what it is sorted by: a number, or the text itself."""

    text: str
    value: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """A table with a name; `numeric` says of each column whether it is flush right."""

    name: str
    note: str = ""  # what there is to say of it
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]


def trials(report: Report) -> Sheet:
    """Give every trial of the search, and the confirming ones."""
    names = (
        "trial", "phase", "micro-batch", "steps", "with", "outcome", "peak", "of budget", "update", "samples/s",
        "message",
    )  # fmt: skip
    limit = None if report.budget is None else report.budget.limit_bytes
    return sheet_of("Trials", names, [_trial(sample, limit) for sample in report.samples], text=(1, 4, 5, 10))


def candidates(report: Report) -> Sheet:
    """Give every trial of the tuning."""
    names = (
        "trial", "outcome", "micro-batch", "steps", "with", "update", "±", "samples/s", "peak", "J/sample", "message",
    )  # fmt: skip
    rows = () if report.tuning is None else report.tuning.trials
    best = None if report.tuning is None else report.tuning.best
    return sheet_of("Tuning trials", names, [_candidate(row, row.trial == best) for row in rows], text=(1, 4, 10))


def plans(report: Report) -> Sheet:
    """Give the ranked plans."""
    names = ("rank", "micro-batches", "steps", "with", "peak", "headroom", "samples/s", "figures")
    rows = [_plan(rank, plan) for rank, plan in enumerate(report.plans, start=1)]
    return sheet_of("Plans", names, rows, text=(3, 7))


def memory(report: Report) -> Sheet:
    """Give what holds the memory at the plan's peak: as the allocator's history has it, else as far as it is known."""
    if report.anatomy is not None:
        return anatomy_sheet(report.anatomy, _context_bytes(report))
    rows: list[list[Cell]] = []
    if report.plan is not None and report.plan.peak_bytes and report.device is not None:
        total, fitted = report.plan.peak_bytes, report.memory_model
        overhead = report.device.overhead_bytes if fitted is None else fitted.overhead_bytes
        parts = parts_of(total, overhead, report.model)
        rows = [_part(part.name, part.size_bytes, total) for part in parts]
        rows.append(_part("in all: the plan's peak", total, total))
    return sheet_of("Where the memory goes", ("part", "size", "share"), rows, text=(0,))


def anatomy_sheet(anatomy: Anatomy, context_bytes: int = 0) -> Sheet:
    """Give the parts of a trial's memory at its peak; with what the process holds besides PyTorch's, if that is known.

    >>> [row[0].text for row in anatomy_sheet(anatomy).rows][:3]
    ['parameters', 'gradients', 'optimizer state']
    """
    parts = {
        **({"context and libraries": context_bytes} if context_bytes else {}),
        "parameters": anatomy.parameter_bytes,
        "buffers, other models": anatomy.buffer_bytes,
        "gradients": anatomy.gradient_bytes,
        "optimizer state": anatomy.optimizer_bytes,
        "batch": anatomy.input_bytes,
        "activations": anatomy.activation_bytes,
        "temporary": anatomy.temporary_bytes,
        "cache, fragmentation": anatomy.cached_bytes,
    }
    total = sum(parts.values())
    rows = [_part(name, size, total) for name, size in {**parts, "in all": total}.items()]
    when = anatomy.moment if anatomy.moment.startswith("before ") else f"in {anatomy.moment}"
    note = f"When most is in use: {when}, at micro-batch {anatomy.micro_batch}."
    return replace(sheet_of("Where the memory goes", ("part", "size", "share"), rows, text=(0,)), note=note)


def modules_sheet(anatomy: Anatomy) -> Sheet:
    """Give the modules that hold the most activations at a trial's peak, and what is left for all others."""
    total = anatomy.activation_bytes
    rest = total - sum(part.size_bytes for part in anatomy.modules)
    named = [(part.name, part.kind, part.count, part.size_bytes) for part in anatomy.modules]
    rows = [
        [Cell(name), Cell(kind), _number(count), _bytes(size), _share(size / total, digits=1)]
        for name, kind, count, size in [*named, ("all others", "", None, rest)]
        if size
    ]
    sheet = sheet_of("Activations by module", ("module", "class", "count", "size", "share"), rows, text=(0, 1))
    return replace(sheet, note="The shares are of all activations. The loss is what is not in the model.")


def facts(report: Report) -> list[tuple[str, str]]:
    """Give what was run, and where."""
    found: list[tuple[str, object]] = [("workload", report.workload), ("created", report.created_at)]
    if report.model is not None:
        model = report.model
        found.append(("model", f"{model.name}, {model.parameters:,} parameters, {format_bytes(model.parameter_bytes)}"))
        found.append(("optimizer", model.optimizer))
    if report.device is not None:
        device = report.device
        free = f"{format_bytes(device.free_bytes)} free of {format_bytes(device.total_bytes)}"
        found.append(("device", f"{device.kind}: {device.name}, {free}"))
    if report.request is not None:
        found.append(("options", _asked(report)))
    if report.prior is not None:
        found.append(("rehearsal", report.prior.words))
    if report.certificate is not None:
        found.append(("search", report.certificate.words))
    found += list(report.environment.items())
    return [(name, str(value)) for name, value in found if value not in (None, "")]


def _asked(report: Report) -> str:
    if report.request is None:
        return ""
    request = report.request.to_dict()
    left_out = ("workload", "workload_digest", "started_in")
    return ", ".join(f"{key}={value}" for key, value in request.items() if key not in left_out and value is not None)


def _context_bytes(report: Report) -> int:
    """Give what the process that confirmed the plan held besides PyTorch's memory."""
    confirmed = [sample for sample in report.samples if sample.ok and sample.phase == "confirm"]
    return max(0, (confirmed[-1].device_used_bytes or 0) - (confirmed[-1].peak_reserved_bytes or 0)) if confirmed else 0


def _part(name: str, size_bytes: int, total_bytes: int) -> list[Cell]:
    return [Cell(name), _bytes(size_bytes), _share(size_bytes / total_bytes, digits=1)]


def _trial(sample: Sample, limit: int | None) -> list[Cell]:
    used = sample.device_used_bytes if sample.ok else None
    return [
        _number(sample.trial),
        Cell(sample.phase),
        _number(sample.micro_batch),
        _number(sample.accumulation_steps),
        Cell(", ".join(words(of_options(sample.options)))),
        Cell(str(sample.outcome).replace("_", " ")),
        _bytes(used),
        _share(None if used is None or not limit else used / limit),
        _seconds(sample.step_seconds),
        _speed(sample.samples_per_second),
        Cell(sample.message),
    ]


def _candidate(row: Measurement, best: bool) -> list[Cell]:
    spread = None
    if row.update_seconds and row.update_seconds_low is not None and row.update_seconds_high is not None:
        spread = (row.update_seconds_high - row.update_seconds_low) / row.update_seconds / 2
    fates = {Fate.PRUNED: "slower: given up", Fate.OOM: "out of memory", Fate.INFEASIBLE: "not run: would not fit"}
    return [
        _number(row.trial),
        Cell("the plan" if best else fates.get(row.outcome, str(row.outcome))),
        _number(row.micro_batch),
        _number(row.accumulation_steps),
        Cell(", ".join(words(of_options(row.options)))),
        _seconds(row.update_seconds),
        _share(spread, digits=1),
        _speed(row.samples_per_second),
        _bytes(row.peak_bytes),
        _number(row.joules_per_sample),
        Cell(row.message),
    ]


def _plan(rank: int, plan: Plan) -> list[Cell]:
    return [
        _number(rank),
        Cell(plan.sizes, plan.micro_batch),
        _number(plan.accumulation_steps),
        Cell(", ".join(words(of_options(plan.options)))),
        _bytes(plan.peak_bytes),
        _bytes(plan.headroom_bytes),
        _speed(plan.samples_per_second),
        Cell("measured" if plan.measured else "predicted"),
    ]


def sheet_of(name: str, columns: tuple[str, ...], rows: Sequence[Sequence[Cell]], *, text: tuple[int, ...]) -> Sheet:
    """Give the table without the columns that say nothing."""
    told = [index for index in range(len(columns)) if any(row[index].text for row in rows)]
    return Sheet(
        name=name,
        columns=tuple(columns[index] for index in told),
        numeric=tuple(index not in text for index in told),
        rows=tuple(tuple(row[index] for index in told) for row in rows),
    )


def _number(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(f"{value:.4g}" if isinstance(value, float) else str(value), value)


def _bytes(value: int | None) -> Cell:
    return Cell("") if value is None else Cell(format_bytes(value), value)


def _share(value: float | None, digits: int = 0) -> Cell:
    return Cell("") if value is None else Cell(f"{value:.{digits}%}", value)


def _seconds(value: float | None) -> Cell:
    if value is None:
        return Cell("")
    return Cell(f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms", value)


def _speed(value: float | None) -> Cell:
    return Cell("") if value is None else Cell(f"{value:.0f}" if value >= 100 else f"{value:.3g}", value)

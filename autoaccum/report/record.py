"""A whole run as one value; report.json is this, field by field."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoaccum.anatomy.record import Anatomy
from autoaccum.errors import UsageError
from autoaccum.plans import Plan
from autoaccum.records import (
    Bracket,
    Budget,
    Certificate,
    DeviceInfo,
    Evidence,
    MemoryModel,
    ModelInfo,
    Prior,
    Record,
    Request,
    Sample,
)
from autoaccum.tuning.results import Tuning

if TYPE_CHECKING:
    import pandas as pd  # noqa: TID251  (a type)
    import plotly.graph_objects as go  # noqa: TID251  (a type)

    from autoaccum.report.replanning import Replan

SCHEMA_VERSION = 1


class Status(StrEnum):
    """How a run ended."""

    PLANNED = "planned"
    NOTHING_FITS = "nothing_fits"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RUNNING = "running"  # so far: what is left of a run that was killed


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Report(Record):
    """Everything a run found; report.json is this, field by field."""

    schema_version: int = SCHEMA_VERSION
    created_at: str
    status: Status
    environment: dict[str, Any]
    device: DeviceInfo | None
    budget: Budget | None
    workload: str
    model: ModelInfo | None
    target_batch: int
    world_size: int
    samples: tuple[Sample, ...]
    bracket: Bracket
    memory_model: MemoryModel | None
    plan: Plan | None
    plans: tuple[Plan, ...]
    tuning: Tuning | None = None
    anatomy: Anatomy | None = None  # where the plan's memory goes, on a GPU
    warnings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()  # what the plan means for the recipe, and what it costs
    request: Request | None = None  # as asked, so that the run can be continued
    certificate: Certificate | None = None  # why no plan with fewer steps fits, as far as the search saw
    prior: Prior | None = None  # what was expected before the first trial, where the workload was rehearsed
    folder: Path | None = field(default=None, compare=False, metadata={"transient": True})  # where it is written

    def __post_init__(self) -> None:
        # So that each can show what it rests on.
        evidence = self.evidence
        object.__setattr__(self, "plans", tuple(replace(plan, evidence=evidence) for plan in self.plans))
        if self.plan is not None:
            object.__setattr__(self, "plan", replace(self.plan, evidence=evidence))

    def __repr__(self) -> str:
        return f"<Report of {self.workload}, {self.status}: {self.plan or 'no plan'}>"

    @property
    def evidence(self) -> Evidence:
        """What the plan rests on."""
        return Evidence(samples=self.samples, memory_model=self.memory_model, budget=self.budget, model=self.model)

    @staticmethod
    def load(run: str | os.PathLike[str]) -> Report:
        """Read the report of a run folder, or of a report.json of its own.

        >>> Report.load("results/model-2026-11-18-001").plan.micro_batch
        64
        """
        from autoaccum.report import files

        return files.read(Path(run))

    def to_frame(self, table: str = "samples") -> pd.DataFrame:
        """Give a table as pandas has it: "samples", "plans" or "tuning"; the columns are those of the CSV file.

        >>> report.to_frame("tuning").sort_values("update_seconds").head(3)
        """
        from autoaccum.report import tables

        if table not in tables.FRAMES:
            raise UsageError(f'there is no table "{table}": use {", ".join(tables.FRAMES)}')
        return tables.FRAMES[table](self)

    def plot(self, chart: str = "memory") -> go.Figure:
        """Give a chart as a plotly figure: "memory", "speed", "history", "knobs" or "tradeoff".

        >>> report.plot("memory").show()
        """
        from autoaccum.report import charts

        if chart not in charts.CHARTS:
            raise UsageError(f'there is no chart "{chart}": use {", ".join(charts.CHARTS)}')
        figure = charts.CHARTS[chart](self)
        if figure is None:
            raise UsageError(f"this run has nothing to draw for {chart}")
        return figure

    def replan(
        self,
        *,
        target_batch: int | None = None,
        memory_budget: str | int | None = None,
        world_size: int | None = None,
        split: str | None = None,
    ) -> Replan:
        """Give the plan for another target, budget or number of ranks, from what this run measured, on no device.

        >>> answer = report.replan(target_batch=1024)
        >>> answer.plan.accumulation_steps, answer.basis
        (16, 'measured')
        """
        from autoaccum.report.replanning import replan

        return replan(self, target_batch=target_batch, memory_budget=memory_budget, world_size=world_size, split=split)

    def _repr_html_(self) -> str:
        said = "".join(f"<li>{html.escape(text)}</li>" for text in (*self.warnings, *self.advice))
        answer = self.plan._repr_html_() if self.plan is not None else f"<p>no plan: {html.escape(self.status)}</p>"
        rows = self.to_frame("samples").drop(columns=["message", "options"]).to_html(index=False, na_rep="", border=0)
        trials = f"<details><summary>{len(self.samples)} trials</summary>{rows}</details>"
        return f"<div><b>{html.escape(self.workload)}</b>{answer}<ul>{said}</ul>{trials}</div>"

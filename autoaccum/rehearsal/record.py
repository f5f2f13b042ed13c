"""The answer of a rehearsal: a row for each GPU, and what it rests on."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoaccum.anatomy.record import Anatomy
from autoaccum.anatomy.traits import Traits
from autoaccum.plans import Plan
from autoaccum.records import ModelInfo, Record, Sample
from autoaccum.rehearsal.bands import Band
from autoaccum.rehearsal.constants import Constant

if TYPE_CHECKING:
    import pandas as pd  # noqa: TID251  (a type)

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Row(Record):
    """The plan for one GPU, as the workload is or with one thing changed."""

    gpu: str  # its name in the list of known ones; a size as it was given
    name: str  # as the driver has it
    total_bytes: int
    source: str  # of total_bytes
    limit_bytes: int  # that a plan may take
    what_if: str = ""  # what is changed: "bf16", "checkpoint"; nothing for the workload as it is
    plan: Plan | None = None
    peak_low_bytes: int | None = None  # the band of plan.peak_bytes
    peak_high_bytes: int | None = None
    needed_bytes: int | None = None  # the peak, and the margin for its errors: what must be there
    next_micro_batch: int | None = None  # the next larger that a plan could use, and that does not fit
    next_peak_bytes: int | None = None
    next_needed_bytes: int | None = None
    constant: Constant | None = None  # held besides torch's memory
    message: str = ""  # why there is no plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene(Record):
    """What ran on the virtual GPU of one generation of cards."""

    capability: str
    what_if: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Rehearsal(Record):
    """Everything a rehearsal found; rehearsal.json is this, field by field."""

    schema_version: int = SCHEMA_VERSION
    created_at: str
    workload: str
    target_batch: int
    world_size: int
    environment: dict[str, Any]
    model: ModelInfo | None
    traits: Traits | None
    band: Band
    rows: tuple[Row, ...]
    scenes: tuple[Scene, ...]
    anatomy: Anatomy | None = None  # of the first row's plan
    warnings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    seconds: float = 0.0
    folder: Path | None = field(default=None, compare=False, metadata={"transient": True})  # where it is written

    def __repr__(self) -> str:
        said = ", ".join(f"{row.gpu}: {row.plan or 'no plan'}" for row in self.rows if not row.what_if)
        return f"<Rehearsal of {self.workload}: {said}>"

    @property
    def plans(self) -> dict[str, Plan | None]:
        """The plan for each GPU, by its name in the list of known ones, or the size that was given.

        >>> autoaccum.rehearse("model.py", target_batch=512, gpu="l4").plans["l4"].micro_batch
        64
        """
        return {row.gpu: row.plan for row in self.rows if not row.what_if}

    @property
    def basis(self) -> tuple[str, ...]:
        """What the predictions rest on, in sentences."""
        sizes = len({(scene.what_if, s.micro_batch) for scene in self.scenes for s in scene.samples})
        torch = self.environment.get("torch", "")
        held: dict[str, list[str]] = {}
        for row in self.rows:
            if row.constant is not None and not row.what_if:
                held.setdefault(row.constant.words, []).append(row.gpu)
        constants = [
            f"context and libraries{'' if len(held) == 1 else ' on ' + ', '.join(gpus)}: {words}"
            for words, gpus in held.items()
        ]
        return (f"{sizes} sizes rehearsed with torch {torch} in {self.seconds:.1f} s", self.band.words, *constants)

    def to_frame(self) -> pd.DataFrame:
        """Give the rows as pandas has them, with the columns of rehearsal.csv."""
        from autoaccum.report.tables import rehearsal_frame

        return rehearsal_frame([row.to_dict() for row in self.rows])

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(index=False, na_rep="", border=0)
        said = "".join(f"<li>{html.escape(text)}</li>" for text in (*self.warnings, *self.advice))
        return f"<div><b>{html.escape(self.workload)}</b>{table}<ul>{said}</ul></div>"

"""A whole run as one value; report.json is this, field by field."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from autoaccum.plans import Plan
from autoaccum.records import Bracket, Budget, DeviceInfo, MemoryModel, ModelInfo, Record, Request, Sample
from autoaccum.tuning.results import Tuning

SCHEMA_VERSION = 1


class Status(StrEnum):
    """How a run ended."""

    PLANNED = "planned"
    NOTHING_FITS = "nothing_fits"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RUNNING = "running"  # so far: what is left of a run that was killed


@dataclass(frozen=True, kw_only=True, slots=True)
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
    warnings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()  # what the plan means for the recipe, and what it costs
    request: Request | None = None  # as asked, so that the run can be continued

    def to_dict(self) -> dict[str, Any]:
        """Give the report as plain data, ready for `json.dumps`."""
        return asdict(self)

"""The tables of a report: raw bytes and seconds, a row for each sample or plan."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pandas as pd

from autoaccum.report.record import Report

SAMPLE_COLUMNS = {
    "trial": "Int64",
    "phase": "string",
    "micro_batch": "Int64",
    "accumulation_steps": "Int64",
    "outcome": "string",
    "peak_allocated_bytes": "Int64",
    "peak_reserved_bytes": "Int64",
    "device_used_bytes": "Int64",
    "step_seconds": "float64",
    "samples_per_second": "float64",
    "alloc_retries": "Int64",
    "message": "string",
    "optimizer_seconds": "float64",
}
PLAN_COLUMNS = {
    "rank": "Int64",
    "micro_batch": "Int64",
    "accumulation_steps": "Int64",
    "micro_batches": "string",
    "world_size": "Int64",
    "effective_batch": "Int64",
    "peak_bytes": "Int64",
    "headroom_bytes": "Int64",
    "samples_per_second": "float64",
    "measured": "boolean",
    "options": "string",
}


def samples_frame(report: Report) -> pd.DataFrame:
    """Give a row for each trial, in the order in which they were run."""
    return _frame([asdict(sample) for sample in report.samples], SAMPLE_COLUMNS)


def plans_frame(report: Report) -> pd.DataFrame:
    """Give a row for each plan, best first; lists are written as JSON."""
    rows = [
        {
            **asdict(plan),
            "rank": rank,
            "micro_batches": json.dumps(plan.micro_batches),
            "options": json.dumps(plan.options),
        }
        for rank, plan in enumerate(report.plans, start=1)
    ]
    return _frame(rows, PLAN_COLUMNS)


def _frame(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    # Column by column: integers stay integers where others are missing.
    series: dict[str, Any] = {
        name: pd.Series([row[name] for row in rows], dtype=kind) for name, kind in columns.items()
    }
    return pd.DataFrame(series)

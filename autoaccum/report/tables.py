"""The tables of a report: raw bytes and seconds, a row for each sample, plan or tuning trial. The home of pandas."""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from autoaccum.knobs.names import of_options
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
    "forward_seconds": "float64",
    "options": "string",
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
TUNING_COLUMNS = {
    "trial": "Int64",
    "outcome": "string",
    "micro_batch": "Int64",
    "accumulation_steps": "Int64",
    "precision": "string",
    "tf32": "boolean",
    "compile": "boolean",
    "checkpoint": "string",
    "channels_last": "boolean",
    "optimizer": "string",
    "expandable_segments": "boolean",
    "update_seconds": "float64",
    "update_seconds_low": "float64",
    "update_seconds_high": "float64",
    "windows": "Int64",
    "samples_per_second": "float64",
    "peak_bytes": "Int64",
    "joules_per_sample": "float64",
    "forward_seconds": "float64",
    "optimizer_seconds": "float64",
    "compile_seconds": "float64",
    "best": "boolean",
    "process": "string",
    "message": "string",
}
REHEARSAL_COLUMNS = {
    "gpu": "string",
    "name": "string",
    "what_if": "string",
    "total_bytes": "Int64",
    "limit_bytes": "Int64",
    "micro_batch": "Int64",
    "accumulation_steps": "Int64",
    "micro_batches": "string",
    "world_size": "Int64",
    "effective_batch": "Int64",
    "peak_bytes": "Int64",
    "peak_low_bytes": "Int64",
    "peak_high_bytes": "Int64",
    "headroom_bytes": "Int64",
    "needed_bytes": "Int64",
    "next_micro_batch": "Int64",
    "next_peak_bytes": "Int64",
    "next_needed_bytes": "Int64",
    "constant_bytes": "Int64",
    "constant_source": "string",
    "options": "string",
    "source": "string",
    "message": "string",
}

# What a spreadsheet takes for the start of a formula; some look behind tabs and line ends.
_FORMULA = tuple("=+-@＝＋－＠")
_LOOK = 1000  # characters, behind which no spreadsheet looks for one
_CONTROL = tuple("\t\r\n\0")


def samples_frame(report: Report) -> pd.DataFrame:
    """Give a row for each trial, in the order in which they were run."""
    rows = [{**sample.to_dict(), "options": json.dumps(sample.options)} for sample in report.samples]
    return _frame(rows, SAMPLE_COLUMNS)


def plans_frame(report: Report) -> pd.DataFrame:
    """Give a row for each plan, best first; lists are written as JSON."""
    rows = [
        {
            **plan.to_dict(),
            "rank": rank,
            "micro_batches": json.dumps(plan.micro_batches),
            "options": json.dumps(plan.options),
        }
        for rank, plan in enumerate(report.plans, start=1)
    ]
    return _frame(rows, PLAN_COLUMNS)


def tuning_frame(report: Report) -> pd.DataFrame:
    """Give a row for each trial of the tuning, with a column for each knob."""
    tuning = report.tuning
    rows = [
        {**row.to_dict(), **of_options(row.options).to_dict(), "best": tuning is not None and row.trial == tuning.best}
        for row in (tuning.trials if tuning is not None else ())
    ]
    return _frame(rows, TUNING_COLUMNS)


FRAMES: dict[str, Callable[[Report], pd.DataFrame]] = {
    "samples": samples_frame,
    "plans": plans_frame,
    "tuning": tuning_frame,
}
COLUMNS = {"samples": SAMPLE_COLUMNS, "plans": PLAN_COLUMNS, "tuning": TUNING_COLUMNS}


def rehearsal_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Give a row for each GPU of a rehearsal, and for each change that was tried on it; a plan's fields are columns."""
    flat = []
    for row in rows:
        plan, constant = row["plan"] or {}, row["constant"] or {}
        lists = {name: json.dumps(plan[name]) if plan else "" for name in ("micro_batches", "options")}
        flat.append(
            {
                **dict.fromkeys(REHEARSAL_COLUMNS),
                **plan,
                **row,
                **lists,
                "constant_bytes": constant.get("typical_bytes"),
                "constant_source": constant.get("source"),
            }
        )
    return _frame(flat, REHEARSAL_COLUMNS)


def to_csv(report: Report, table: str) -> str:
    """Give a table of a report as CSV."""
    return csv_of(FRAMES[table](report))


def csv_of(frame: pd.DataFrame) -> str:
    """Give a table as CSV, in which a spreadsheet finds no formula: such a text has an apostrophe before it."""
    frame = frame.copy()
    for name in frame.columns:
        if frame[name].dtype == "string":
            frame[name] = frame[name].map(_defused, na_action="ignore").astype("string")
    # All text in quotes: by itself the writer leaves a lone carriage return bare, behind which a row would begin.
    return frame.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)


def _defused(text: str) -> str:
    """Give the text so that a spreadsheet does not run it: what begins as a formula, or after white space would."""
    seen = "".join(each for each in text[:_LOOK] if unicodedata.category(each) != "Cf")  # marks that nobody sees
    return f"'{text}" if seen.lstrip()[:1] in _FORMULA or text[:1] in _CONTROL else text


def _frame(rows: list[dict[str, Any]], columns: dict[str, str]) -> pd.DataFrame:
    # Column by column: integers stay integers where others are missing.
    series: dict[str, Any] = {
        name: pd.Series([_told(row[name], kind) for row in rows], dtype=kind) for name, kind in columns.items()
    }
    return pd.DataFrame(series)


def _told(value: Any, kind: str) -> Any:
    """Give a text as a file can hold it: one that is not there is empty, and half a character is written out."""
    if kind != "string":
        return value
    return "" if value is None else str(value).encode("utf-8", "backslashreplace").decode()

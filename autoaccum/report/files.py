"""The run folder: made before the first trial, so that a wrong --out costs nothing, and filled at the end."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

from autoaccum.errors import UsageError
from autoaccum.report.record import Report

NAMES = ("report.json", "samples.csv", "plans.csv")


def new_folder(out: Path, workload: str, today: date) -> Path:
    """Make OUT/<workload>-<date>-<number>, with the first number that is free."""
    stem = re.sub(r"[^\w.-]+", "-", Path(workload.partition(".py:")[0]).stem).strip("-.") or "workload"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            folder = out / f"{stem}-{today.isoformat()}-{number:03d}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except FileExistsError:
        raise UsageError(f"--out {out} is a file: give a folder") from None
    except NotADirectoryError:
        raise UsageError(f"--out {out} lies below a file: give a folder") from None
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}; give another folder") from error
    raise UsageError(f"--out {out} holds 999 runs of {stem} from today: give another folder")


def write(report: Report, folder: Path) -> None:
    """Write report.json, then the tables that are made from it; each file is whole or not there."""
    _write_whole(folder / "report.json", as_json(report) + "\n")
    from autoaccum.report.tables import plans_frame, samples_frame  # pandas takes its time

    _write_whole(folder / "samples.csv", samples_frame(report).to_csv(index=False))
    _write_whole(folder / "plans.csv", plans_frame(report).to_csv(index=False))


def as_json(report: Report) -> str:
    """Give the report as JSON for people too: a list of numbers stands on one line."""
    text = json.dumps(report.to_dict(), indent=2)
    return re.sub(r"\[\s+(\d+(?:,\s+\d+)*)\s+\]", lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text)


def read(folder: Path) -> Report:
    """Read the report of a run folder back."""
    return Report.from_dict(json.loads((folder / "report.json").read_text(encoding="utf-8")))


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error

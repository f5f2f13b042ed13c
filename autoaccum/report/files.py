"""The run folder: made before the first trial, so that a wrong --out costs nothing, and filled at the end."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

from autoaccum.errors import UsageError
from autoaccum.report.record import Report

NAMES = ("report.json", "samples.csv", "plans.csv", "tuning.csv")


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
    write_json(report, folder)
    from autoaccum.report import tables  # pandas takes its time

    _write_whole(folder / "samples.csv", tables.samples_frame(report).to_csv(index=False))
    _write_whole(folder / "plans.csv", tables.plans_frame(report).to_csv(index=False))
    _write_whole(folder / "tuning.csv", tables.tuning_frame(report).to_csv(index=False))


def write_json(report: Report, folder: Path) -> None:
    """Write report.json alone."""
    _write_whole(folder / "report.json", as_json(report) + "\n")


def remove(folder: Path) -> None:
    """Take away a run folder in which there is nothing to read."""
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def as_json(report: Report) -> str:
    """Give the report as JSON for people too: a list of numbers stands on one line."""
    text = json.dumps(report.to_dict(), indent=2)
    return re.sub(r"\[\s+(\d+(?:,\s+\d+)*)\s+\]", lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text)


def read(folder: Path) -> Report:
    """Read the report of a run folder back."""
    path = folder / "report.json"
    try:
        return Report.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        hint = "give the folder of a run, such as results/model-2026-11-18-001"
        raise UsageError(f"{folder} holds no report.json: {hint}") from None
    except NotADirectoryError:
        raise UsageError(f"{folder} is a file: give the folder of a run") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} is not a report of autoaccum") from error


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error

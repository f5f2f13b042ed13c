"""The run folder: made before the first trial, so that a wrong --out costs nothing, and filled at the end."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

from autoaccum.errors import UsageError
from autoaccum.outputs import whole
from autoaccum.records import Record
from autoaccum.report.record import SCHEMA_VERSION, Report

NAMES = ("report.json", "samples.csv", "plans.csv", "tuning.csv", "report.html")
MADE = NAMES[1:]  # from the first one
_TABLES = ("samples", "plans", "tuning")


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
    """Write report.json, then all that is made from it; each file is whole or as it was before."""
    write_json(report, folder)
    rebuild(report, folder)


def rebuild(report: Report, folder: Path) -> None:
    """Write what is made from report.json."""
    from autoaccum.report import page, tables  # pandas and plotly take their time

    for table in _TABLES:
        write_whole(folder / f"{table}.csv", tables.to_csv(report, table))
    write_whole(folder / "report.html", page.render(report))


def write_json(report: Report, folder: Path) -> None:
    """Write report.json alone."""
    write_whole(folder / "report.json", as_json(report) + "\n")


def remove(folder: Path) -> None:
    """Take away a run folder in which there is nothing to read."""
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def as_json(record: Record) -> str:
    """Give a report as JSON for people too: a list of numbers stands on one line."""
    text = json.dumps(record.to_dict(), indent=2)
    # Line ends stand between values alone, never within a text.
    return re.sub(r"\[\n\s+(\d+(?:,\n\s+\d+)*)\n\s+\]", lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text)


def read(run: Path) -> Report:
    """Read the report of a run folder back, or of a report.json of its own; also of an older version."""
    path = run if run.suffix == ".json" and not run.is_dir() else run / "report.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        _check_version(data["schema_version"], path)
        return replace(Report.from_dict(data), folder=path.parent)
    except FileNotFoundError:
        hint = "give the folder of a run, such as results/model-2026-11-18-001"
        if (run / "rehearsal.json").exists():
            hint = "it is of a rehearsal, whose tables are rehearsal.csv and rehearsal.json; a probe's run can be shown"
        raise UsageError(f"{run} holds no report.json: {hint}") from None
    except NotADirectoryError:
        raise UsageError(f"{run} is a file: give the folder of a run") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} is not a report of autoaccum, or is damaged: probe again") from error


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _check_version(version: object, path: Path) -> None:
    """Raise for a report that cannot be understood: what is older lacks fields, which have defaults."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError("no version")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{path} is of version {version}, written by a newer autoaccum than this one, which reads up to "
            f"{SCHEMA_VERSION}: upgrade autoaccum"
        )


def write_whole(path: Path, text: str) -> None:
    """Write a text so that the file is whole, or as it was before."""
    with whole(path) as partial, partial.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())

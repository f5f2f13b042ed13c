"""The folder of a rehearsal: rehearsal.json, and rehearsal.csv made from it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from autoaccum.rehearsal.record import Rehearsal
from autoaccum.report import files

NAMES = ("rehearsal.json", "rehearsal.csv")


def new_folder(out: Path, workload: str) -> Path:
    """Make a folder as those of probes are named."""
    return files.new_folder(out, workload, datetime.now().date())


def write(rehearsal: Rehearsal, folder: Path) -> None:
    """Write both files; each is whole or not there."""
    from autoaccum.report.tables import csv_of  # pandas takes its time

    files.write_whole(folder / NAMES[0], files.as_json(rehearsal) + "\n")
    files.write_whole(folder / NAMES[1], csv_of(rehearsal.to_frame()))

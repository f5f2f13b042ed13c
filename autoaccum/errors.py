"""What a person has to mend, as one tree; each branch is an exit code.

    AutoaccumError              1  something in autoaccum itself went wrong
    ├── UsageError              2  an option or a path is wrong
    ├── NothingFits             3  not even the smallest micro-batch fits the budget
    ├── WorkloadError           4  the user's own file raised or broke its contract
    └── DeviceError             5  no usable device

Running out of memory is not here: it is data, `records.Outcome.OOM`. What is worth knowing and stops nothing is an
AutoaccumWarning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from autoaccum.report.record import Report


class AutoaccumError(Exception):
    """The root of the tree; `report` holds what was measured before it, where anything was."""

    exit_code = 1

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.details = details  # a traceback of the user's own code, shown on request
        self.report: Report | None = None
        self.folder: Path | None = None  # where the report was written


class UsageError(AutoaccumError):
    """An option or a path is wrong."""

    exit_code = 2


class NothingFits(AutoaccumError):  # noqa: N818  (a verdict, not a fault)
    """Not even the smallest micro-batch fits the budget."""

    exit_code = 3


class WorkloadError(AutoaccumError):
    """The user's own file raised, or broke the workload contract."""

    exit_code = 4


class DeviceError(AutoaccumError):
    """There is no usable device of the kind that was asked for."""

    exit_code = 5


class AutoaccumWarning(UserWarning):
    """Something that the user should know, and that stops nothing."""


class Interrupted(KeyboardInterrupt):
    """The user pressed Ctrl-C; `report` holds what was measured until then."""

    exit_code = 130

    def __init__(self, report: Report) -> None:
        super().__init__("interrupted")
        self.report = report
        self.folder: Path | None = None

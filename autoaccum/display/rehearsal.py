"""A rehearsal in the terminal: the plans for stdout, the rest beside it."""

from __future__ import annotations

from typing import IO

from autoaccum.display.progress import Display
from autoaccum.display.tables import console_on, say, sheet_table, show_sheets
from autoaccum.records import Trial
from autoaccum.rehearsal.files import NAMES
from autoaccum.rehearsal.record import Rehearsal
from autoaccum.rehearsal.sheets import plans_sheet, without_plans
from autoaccum.report.sheets import anatomy_sheet, modules_sheet
from autoaccum.watching import Silent


class Rehearsing(Silent):
    """Says on a terminal which size is run now."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def trial_started(self, trial: Trial) -> None:
        """Show what runs now."""
        self._display.waiting(f"rehearsing micro-batch {trial.micro_batch}")


def show_plans(rehearsal: Rehearsal, stream: IO[str]) -> None:
    """Show the row of each GPU."""
    console = console_on(stream)
    console.print(sheet_table(plans_sheet(rehearsal), console.width))
    say(console, [("no plan", f"{names}: {reason}", "yellow") for names, reason in without_plans(rehearsal)])


def show_rest(rehearsal: Rehearsal, stream: IO[str], *, quiet: bool) -> None:
    """Show what the plans rest on, and unless `quiet` where the memory goes and what would help."""
    console = console_on(stream)
    said = [("warning", text, "yellow") for text in rehearsal.warnings]
    if not quiet:
        said += [("basis", text, "bold") for text in rehearsal.basis]
        said += [("advice", text, "bold") for text in rehearsal.advice]
    say(console, said)
    if quiet:
        return
    if rehearsal.anatomy is not None:
        show_sheets(console, (anatomy_sheet(rehearsal.anatomy), modules_sheet(rehearsal.anatomy)))
        console.print()
    if rehearsal.folder is not None:
        say(console, [("wrote", f"{rehearsal.folder}/  {'  '.join(NAMES)}", "bold")])

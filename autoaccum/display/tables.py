"""Saved runs in the terminal: tables that fit its width, in plain text where there is no terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoaccum.display.progress import plan_line
from autoaccum.report import sheets
from autoaccum.report.comparing import Comparison, change, shown
from autoaccum.report.record import Report
from autoaccum.report.words import sentence
from autoaccum.tuning.costs import gained

_WIDTH_OF_A_FILE = 120
_MOST_ROWS = 40  # of one table; the CSV files have them all
_GAP = 2  # between columns
_NARROWEST = 12  # to which text is wrapped: its longest words have as many letters
_PROSE = {"with": 20, "message": 16}  # to which longer text is
# What goes first where the terminal is narrow: what other columns tell too, then what is looked for least.
_LEAST_NEEDED = (
    "J/sample", "±", "headroom", "memory", "next needs", "9 in 10", "count", "class", "steps", "phase", "of budget",
    "trial", "message", "update", "peak", "with",
)  # fmt: skip


def show_run(report: Report, stream: IO[str], *, quiet: bool = False) -> None:
    """Show the plan, and unless `quiet` what it rests on."""
    console = console_on(stream)
    planned = report.plan is not None and report.budget is not None
    console.print(Text(plan_line(report.plan, report.budget) if planned else sentence(report)))  # type: ignore[arg-type]
    if quiet:
        return
    said = [("warning", text, "yellow") for text in report.warnings]
    said += [] if report.tuning is None else [("tuned", gained(report.tuning), "bold")]
    said += [("advice", text, "bold") for text in report.advice]
    say(console, said)
    by_module = [] if report.anatomy is None else [sheets.modules_sheet(report.anatomy)]
    others = [sheets.plans(report), sheets.candidates(report), sheets.trials(report)]
    show_sheets(console, [sheets.memory(report), *by_module, *others])
    console.print()
    say(console, ((name, value, "dim") for name, value in sheets.facts(report)))


def show_sheets(console: Console, shown: Iterable[sheets.Sheet]) -> None:
    """Show those that have rows, each with its note."""
    for sheet in shown:
        if sheet.rows:
            console.print()
            console.print(sheet_table(sheet, console.width, _MOST_ROWS))
            if sheet.note:
                console.print(Text(sheet.note, "dim"))
            if len(sheet.rows) > _MOST_ROWS:
                console.print(f"[dim]{len(sheet.rows) - _MOST_ROWS} more in the CSV file[/]")


def show_comparison(comparison: Comparison, stream: IO[str]) -> None:
    """Show the figures of two runs side by side, and where the runs are not alike."""
    console = console_on(stream)
    table = _empty()
    for name in ("figure", "before", "after", "change"):
        table.add_column(name, justify="left" if name == "figure" else "right", no_wrap=True)
    for figure, (before, after) in comparison.figures.items():
        if before is not None or after is not None:
            table.add_row(figure, shown(figure, before), shown(figure, after), change(before, after))
    console.print(table)
    say(console, (("not alike", text, "yellow") for text in comparison.differences))


def say(console: Console, lines: Iterable[tuple[str, str, str]]) -> None:
    """Print words with what there is to say of each, its lines below one another."""
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for word, text, style in lines:
        grid.add_row(Text(word, style), Text(text))
    if grid.row_count:
        console.print(grid)


def sheet_table(sheet: sheets.Sheet, width: int, most: int | None = None) -> Table:
    """Give the table with as many of its columns as fit: numbers stay whole, text is wrapped."""
    rows = sheet.rows[:most]
    longest = [max(len(name), *(len(row[n].text) for row in rows)) for n, name in enumerate(sheet.columns)]
    wrapped = [min(each, _PROSE.get(sheet.columns[n], _NARROWEST)) for n, each in enumerate(longest)]
    least = [longest[n] if sheet.numeric[n] else wrapped[n] for n in range(len(longest))]
    kept = list(range(len(sheet.columns)))
    for name in _LEAST_NEEDED:
        if sum(least[n] + _GAP for n in kept) > width:
            kept = [n for n in kept if sheet.columns[n] != name]
    table = _empty(sheet.name)
    for n in kept:
        if sheet.numeric[n]:
            table.add_column(sheet.columns[n], justify="right", no_wrap=True)
        else:
            table.add_column(sheet.columns[n], min_width=least[n], overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[n].text) for n in kept))
    return table


def _empty(title: str | None = None) -> Table:
    padding = (0, _GAP - 1, 0, 0)  # the box adds one
    return Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE, show_edge=False, pad_edge=False,
        padding=padding,
    )  # fmt: skip


def console_on(stream: IO[str]) -> Console:
    """Give a console that is as wide as the terminal, or as a file should be."""
    told = stream.isatty() or "COLUMNS" in os.environ
    # rich drops colours only where NO_COLOR is set, and people mean bold and dim too.
    plain = bool(os.environ.get("NO_COLOR"))
    width = None if told else _WIDTH_OF_A_FILE
    return Console(file=stream, highlight=False, width=width, color_system=None if plain else "auto")

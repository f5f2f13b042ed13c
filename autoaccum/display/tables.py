"""Saved runs in the terminal: tables that fit its width, in plain text where there is no terminal."""

from __future__ import annotations

import os
from typing import IO

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoaccum.display.progress import plan_line
from autoaccum.report import sheets
from autoaccum.report.comparing import Comparison, change, shown
from autoaccum.report.record import Report
from autoaccum.report.words import sentence
from autoaccum.tuning.costs import gained

_WIDTH_OF_A_FILE = 120
_MOST_ROWS = 40  # of one table; the CSV files have them all


def show_run(report: Report, stream: IO[str], *, quiet: bool = False) -> None:
    """Show the plan, and unless `quiet` what it rests on."""
    console = _console(stream)
    if report.plan is not None and report.budget is not None:
        console.print(escape(plan_line(report.plan, report.budget)), soft_wrap=True)
    else:
        console.print(escape(sentence(report)), soft_wrap=True)
    if quiet:
        return
    for warning in report.warnings:
        console.print(f"[yellow]warning[/]  {escape(warning)}", soft_wrap=True)
    if report.tuning is not None:
        console.print(f"[bold]tuned[/]  {escape(gained(report.tuning))}", soft_wrap=True)
    for advice in report.advice:
        console.print(f"[bold]advice[/]  {escape(advice)}", soft_wrap=True)
    for sheet in (sheets.memory(report), sheets.plans(report), sheets.candidates(report), sheets.trials(report)):
        if sheet.rows:
            console.print(_table(sheet))
            if len(sheet.rows) > _MOST_ROWS:
                console.print(f"[dim]{len(sheet.rows) - _MOST_ROWS} more in the CSV file[/]")
    for name, value in sheets.facts(report):
        console.print(f"[dim]{escape(name)}[/]  {escape(value)}", soft_wrap=True)


def show_comparison(comparison: Comparison, stream: IO[str]) -> None:
    """Show the figures of two runs side by side, and where the runs are not alike."""
    console = _console(stream)
    table = Table(box=SIMPLE, pad_edge=False)
    for name in ("figure", "before", "after", "change"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    for figure, (before, after) in comparison.figures.items():
        if before is not None or after is not None:
            table.add_row(figure, shown(figure, before), shown(figure, after), change(before, after))
    console.print(table)
    for text in comparison.differences:
        console.print(f"[yellow]not alike[/]  {escape(text)}", soft_wrap=True)


def _table(sheet: sheets.Sheet) -> Table:
    table = Table(title=sheet.name, title_justify="left", title_style="bold", box=SIMPLE, pad_edge=False)
    for column, numeric in zip(sheet.columns, sheet.numeric, strict=True):
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in sheet.rows[:_MOST_ROWS]:
        table.add_row(*(escape(cell.text) for cell in row))
    return table


def _console(stream: IO[str]) -> Console:
    told = stream.isatty() or "COLUMNS" in os.environ
    return Console(file=stream, highlight=False, width=None if told else _WIDTH_OF_A_FILE)

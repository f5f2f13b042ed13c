"""autoaccum show."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from autoaccum.commands.options import answering, command, option


@command()
@click.argument("run", metavar="RUN", type=click.Path())
@option("-q", "--quiet", is_flag=True, help="Show the plan only.")
def show(run: str, quiet: bool) -> None:
    """Show a saved RUN: its plan, and tables of what was measured.

    \b
    Examples:
      autoaccum show results/model-2026-11-18-001
      autoaccum show results/model-2026-11-18-001 | less -R
    """
    from autoaccum.display import show_run
    from autoaccum.report import files

    found = files.read(Path(run))
    with answering():
        show_run(found, sys.stdout, quiet=quiet)

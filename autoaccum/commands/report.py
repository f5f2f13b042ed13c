"""autoaccum report."""

from __future__ import annotations

from pathlib import Path

import click

from autoaccum.commands.options import command, option, print_answer


@command()
@click.argument("run", metavar="RUN", type=click.Path())
@option(
    "--plot", metavar="FILE", type=click.Path(), help="Also draw memory against the micro-batch: .svg, .png or .pdf."
)
def report(run: str, plot: str | None) -> None:
    """Make the CSV files and report.html of RUN again, from its report.json.

    \b
    Examples:
      autoaccum report results/model-2026-11-18-001
      autoaccum report results/model-2026-11-18-001 --plot memory.svg
    """
    from autoaccum.pictures.memory import picture
    from autoaccum.pictures.static import draw
    from autoaccum.report import files

    found = files.read(Path(run))
    if plot is not None:
        draw(picture(found.evidence), Path(plot))
        print_answer(f"drew  {plot}")
    if found.folder is not None:
        files.rebuild(found, found.folder)
        print_answer(f"wrote  {found.folder}/  {'  '.join(files.MADE)}")

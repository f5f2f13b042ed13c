"""autoaccum compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from autoaccum.commands.options import answering, command, option, print_answer

_GATE_EXIT_CODE = 6


@command()
@click.argument("before", metavar="RUN", type=click.Path())
@click.argument("after", metavar="RUN", type=click.Path())
@option("--fail-if", metavar="GATES", help='Such as "peak_bytes>+5%,samples_per_second<-5%": exit code 6 if so.')
@option("--json", "as_json", is_flag=True, help="Print the comparison on stdout as JSON.")
def compare(before: str, after: str, fail_if: str | None, as_json: bool) -> None:
    """Compare two runs, the older one first; with --fail-if, as a gate for CI.

    A gate is a figure of the plan, < or >, and a number: "+5%" is a change by so much of the first run's,
    "+1" a change by that, "20GiB" or "100" a value of the second run's.

    \b
    Examples:
      autoaccum compare results/model-2026-11-17-001 results/model-2026-11-18-001
      autoaccum compare OLD NEW --fail-if "peak_bytes>+5%,samples_per_second<-5%"
      autoaccum compare OLD NEW --fail-if "accumulation_steps>+0,peak_bytes>20GiB"

    Exit codes: 0 no gate failed, 2 usage, 6 a gate failed.
    """
    from autoaccum.display import Display, show_comparison
    from autoaccum.report import comparing, files

    gates = [] if fail_if is None else comparing.parse_gates(fail_if)
    found = comparing.compare(files.read(Path(before)), files.read(Path(after)), gates)
    if as_json:
        print_answer(json.dumps(found.to_dict(), indent=2))
    else:
        with answering():
            show_comparison(found, sys.stdout)
    display = Display(sys.stderr)
    for text in found.broken:
        display.say("failed", text, style="red")
    if found.broken:
        raise click.exceptions.Exit(_GATE_EXIT_CODE)

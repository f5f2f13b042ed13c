"""autoaccum verify."""

from __future__ import annotations

import sys

import click

from autoaccum.commands.options import command, option, print_answer


@command()
@click.argument("workload", metavar="FILE[:NAME]", type=click.Path())
@option("--json", "as_json", is_flag=True, help="Print the verdict on stdout as JSON.")
@option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the workload's RNGs.")
@option("--timeout", type=float, default=600.0, show_default=True, metavar="SECONDS", help="For all of it.")
@option("-q", "--quiet", is_flag=True, help="Show the verdict only.")
@option("-v", "--verbose", is_flag=True, help="Show what the workload prints, and its tracebacks.")
def verify(workload: str, as_json: bool, seed: int, timeout: float, quiet: bool, verbose: bool) -> None:
    """Say whether accumulating equals the full batch, for the model and the loss in FILE.

    The gradients of 12 rows are compared in float64 on the CPU, whole and in unequal micro-batches.

    \b
    Examples:
      autoaccum verify model.py
      autoaccum verify train.py:workload --json

    Exit codes: 0 equivalent, 1 not equivalent, 2 inconclusive (or usage), 4 the workload raised.
    """
    from autoaccum import verification
    from autoaccum.display import Display

    display = Display(sys.stderr)
    if not quiet:
        display.waiting("comparing gradients")
    try:
        verdict = verification.run(workload, seed=seed, timeout=timeout, echo=display.echo if verbose else None)
    finally:
        display.close()
    print_answer(verification.as_json(verdict) if as_json else verdict.line)
    for word, text in () if quiet else verification.details(verdict):
        display.say(word, text)
    raise click.exceptions.Exit(verdict.exit_code)

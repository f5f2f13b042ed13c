"""autoaccum plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from autoaccum.commands.options import command, option, print_answer


@command()
@click.argument("run", metavar="RUN", type=click.Path())
@option("--target-batch", type=int, metavar="N", help="The effective batch to reach.  [default: the run's]")
@option("--memory-budget", metavar="SIZE", help="20GiB, 20GB or 80%.  [default: the run's]")
@option("--world-size", type=int, metavar="N", help="Ranks sharing the batch.  [default: the run's]")
@option("--split", metavar="KIND", help="auto, even or uneven micro-batches.  [default: the run's]")
@option("--json", "as_json", is_flag=True, help="Print the answer on stdout as JSON.")
@option("-q", "--quiet", is_flag=True, help="Print the plan only.")
def plan(
    run: str,
    target_batch: int | None,
    memory_budget: str | None,
    world_size: int | None,
    split: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Answer from a saved RUN, without touching a device.

    RUN is the folder of a probe. The answer says whether its micro-batch was run, or is a prediction of the memory
    model, with the model's error.

    \b
    Examples:
      autoaccum plan results/model-2026-11-18-001 --target-batch 1024
      autoaccum plan results/model-2026-11-18-001 --memory-budget 16GiB --world-size 4
      autoaccum plan results/model-2026-11-18-001 --target-batch 1024 --json | jq .plan

    Exit codes: 0 plan found, 2 usage, 3 nothing fits.
    """
    from autoaccum.display import Display, plan_line
    from autoaccum.report import files
    from autoaccum.report.replanning import replan

    found = replan(
        files.read(Path(run)),
        target_batch=target_batch,
        memory_budget=memory_budget,
        world_size=world_size,
        split=split,
    )
    display = Display(sys.stderr)
    print_answer(json.dumps(found.to_dict(), indent=2) if as_json else plan_line(found.plan, found.budget))
    if quiet:
        return
    for warning in found.warnings:
        display.say("warning", warning, style="yellow")
    display.say("basis", found.words)

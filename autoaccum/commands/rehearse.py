"""autoaccum rehearse."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoaccum.commands.options import answering, command, option, print_answer
from autoaccum.errors import NothingFits

if TYPE_CHECKING:
    from autoaccum.rehearsal.record import Rehearsal


@command()
@click.argument("workload", metavar="FILE[:NAME]", type=click.Path())
@option("--target-batch", type=int, required=True, metavar="N", help="The effective batch to reach, exactly.")
@option("--gpu", default="all", show_default=True, metavar="LIST", help="Names and sizes: a100-40gb,l4,24GiB.")
@option("--memory-budget", metavar="SIZE", help="20GiB, or 80% of each GPU.  [default: all of it]")
@option("--world-size", type=int, default=1, show_default=True, metavar="N", help="Ranks sharing the batch.")
@option("--split", default="auto", show_default=True, metavar="KIND", help="auto, even or uneven micro-batches.")
@option("--what-if", metavar="LIST", help="checkpoint,bf16,sgd,fused_loss ...: the plans with each; a+b for both.")
@option("--snapshot", metavar="FILE", type=click.Path(), help="Also write the memory's history, for memory_viz.")
@option("--out", default="results", show_default=True, metavar="DIR", type=click.Path(), help="Where the folder goes.")
@option("--json", "as_json", is_flag=True, help="Print the rehearsal on stdout, and nothing else there.")
@option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the workload's RNGs.")
@option("--timeout", type=float, default=600.0, show_default=True, metavar="SECONDS", help="For one trial.")
@option("-q", "--quiet", is_flag=True, help="Print the plans only.")
@option("-v", "--verbose", is_flag=True, help="Show what the workload prints, and its tracebacks.")
def rehearse(
    gpu: str,
    what_if: str | None,
    snapshot: str | None,
    out: str,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Say what plan FILE would have on GPUs that are not here.

    The workload trains on a virtual GPU, where PyTorch's own allocator says what it reserves. That needs a CUDA build
    of PyTorch and a C compiler, and no GPU. Peaks are predictions, with the band in which 9 of 10 models fell.

    \b
    Examples:
      autoaccum rehearse model.py --target-batch 512 --gpu a100-40gb,a10g,l4,24GiB
      autoaccum rehearse model.py --target-batch 512 --gpu all
      autoaccum rehearse model.py --target-batch 512 --gpu l4 --what-if checkpoint,bf16,checkpoint+bf16
      autoaccum rehearse model.py --target-batch 512 --gpu l4 --snapshot memory.pickle

    Exit codes: 0 a plan for one of the rows at least, 2 usage, 3 nothing fits, 4 the workload raised,
    5 no virtual GPU here, 130 interrupted.
    """
    from autoaccum.display import Display
    from autoaccum.display.rehearsal import Rehearsing
    from autoaccum.records import Request
    from autoaccum.rehearsal import rehearse as line

    display = Display(sys.stderr)
    try:
        answer = line.run(
            Request(**options),
            gpu=gpu,
            what_if=what_if,
            snapshot=None if snapshot is None else Path(snapshot),
            out=Path(out),
            watcher=None if quiet else Rehearsing(display),
            echo=display.echo if verbose else None,
        )
    finally:
        display.close()
    _show(answer, as_json=as_json, quiet=quiet)
    if snapshot is not None and answer.anatomy is not None and not quiet:
        display.say("wrote", f"{snapshot}  (for https://docs.pytorch.org/memory_viz)")
    if all(row.plan is None for row in answer.rows):
        raise NothingFits("there is a plan for none of these GPUs, for the reasons above")


def _show(answer: Rehearsal, *, as_json: bool, quiet: bool) -> None:
    from autoaccum.display.rehearsal import show_plans, show_rest
    from autoaccum.report.files import as_json as as_json_text

    elsewhere = "" if answer.folder is None else f"; the rehearsal is in {answer.folder}"
    if as_json:
        print_answer(as_json_text(answer), elsewhere)
    else:
        with answering(elsewhere):
            show_plans(answer, sys.stdout)
    show_rest(answer, sys.stderr, quiet=quiet)

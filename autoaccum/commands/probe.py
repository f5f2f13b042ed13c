"""autoaccum probe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from autoaccum.commands.options import command, option, print_answer
from autoaccum.errors import AutoaccumError, Interrupted

if TYPE_CHECKING:
    from autoaccum.records import Request


@command()
@click.argument("workload", metavar="[FILE[:NAME]]", required=False, type=click.Path())
@option("--target-batch", type=int, metavar="N", help="The effective batch to reach, exactly.")
@option("--memory-budget", metavar="SIZE", help="20GiB, 20GB or 80%.  [default: what is free, less a reserve]")
@option("--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda[:N] or virtual:SIZE.")
@option("--world-size", type=int, default=1, show_default=True, metavar="N", help="Ranks sharing the batch.")
@option("--reference-batch", type=int, metavar="N", help="The batch that your recipe was made for, for advice.")
@option("--split", default="auto", show_default=True, metavar="KIND", help="auto, even or uneven micro-batches.")
@option("--find-max", is_flag=True, help="Find the exact largest micro-batch, beyond what the plan needs.")
@option(
    "--tune-trials", type=int, default=16, show_default=True, metavar="N", help="To tune the speed; 0 turns it off."
)
@option("--tune-seconds", type=float, default=60.0, show_default=True, metavar="SECONDS", help="For tuning, about.")
@option("--allow", metavar="LIST", help="bf16,fp16,tf32,compile,checkpoint,channels_last: what tuning may turn on.")
@option(
    "--objective", default="throughput", show_default=True, metavar="WHAT", help="throughput, or energy per sample."
)
@option("--storage", metavar="URL", help="Of the Optuna study.  [default: a journal in the run folder]")
@option("--resume", metavar="RUN", type=click.Path(), help="Go on with the run in this folder; give no FILE.")
@option(
    "--out", default="results", show_default=True, metavar="DIR", type=click.Path(), help="Where the run folder goes."
)
@option(
    "--plot", metavar="FILE", type=click.Path(), help="Also draw memory against the micro-batch: .svg, .png or .pdf."
)
@option(
    "--snapshot", metavar="FILE", type=click.Path(), help="Also write the plan's memory for pytorch.org/memory_viz."
)
@option("--json", "as_json", is_flag=True, help="Print the report on stdout, and nothing else there.")
@option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the workload's RNGs.")
@option("--no-rehearse", is_flag=True, help="Start from small sizes, without a rehearsal.")
@option("--timeout", type=float, default=600.0, show_default=True, metavar="SECONDS", help="For one trial.")
@option("-q", "--quiet", is_flag=True, help="Show no progress.")
@option("-v", "--verbose", is_flag=True, help="Show what the workload prints, and its tracebacks.")
def probe(
    as_json: bool, out: str, plot: str | None, quiet: bool, verbose: bool, resume: str | None, **options: Any
) -> None:
    """Probe the workload in FILE and print the plan.

    FILE defines build_model() and make_batch(size), and may define loss(model, batch) and
    build_optimizer(model). FILE:NAME takes an autoaccum.Workload, or a function returning one.

    \b
    Examples:
      autoaccum probe model.py --target-batch 512
      autoaccum probe model.py --target-batch 512 --memory-budget 20GiB --device cuda:1
      autoaccum probe model.py --target-batch 512 --device virtual:24GiB
      autoaccum probe train.py:workload --target-batch 256 --json > report.json
      autoaccum probe model.py --target-batch 512 --allow bf16,checkpoint --tune-seconds 300
      autoaccum probe model.py --target-batch 512 --plot memory.svg --snapshot memory.pickle
      autoaccum probe --resume results/model-2026-11-18-001

    Exit codes: 0 plan found, 1 internal error, 2 usage, 3 nothing fits, 4 the workload raised,
    5 no usable device, 130 interrupted.
    """
    from autoaccum import pipeline
    from autoaccum.display import Display, plan_line
    from autoaccum.pictures.memory import picture
    from autoaccum.pictures.static import check_path, draw
    from autoaccum.report.files import NAMES
    from autoaccum.report.files import as_json as as_json_text
    from autoaccum.report.record import Report
    from autoaccum.tuning.costs import gained
    from autoaccum.tuning.results import JOURNAL

    display = Display(sys.stderr)
    if plot is not None:
        check_path(Path(plot))

    def show(report: Report, folder: Path | None) -> None:
        display.close()
        elsewhere = "" if folder is None else f"; the report is in {folder}"
        if as_json:
            print_answer(as_json_text(report), elsewhere)
        elif report.plan is not None and report.budget is not None:
            print_answer(plan_line(report.plan, report.budget), elsewhere)
        for warning in report.warnings:
            display.say("warning", warning, style="yellow")
        if quiet:
            return
        if report.tuning is not None:
            display.say("tuned", gained(report.tuning))
        for advice in report.advice:
            display.say("advice", advice)
        largest, failed = report.bracket.largest_ok, report.bracket.smallest_failed
        if report.request is not None and report.request.find_max and largest is not None and failed is not None:
            display.say("largest", f"micro-batch {largest} ran, {failed} did not fit")
        if report.anatomy is not None and report.request is not None and report.request.snapshot is not None:
            display.say("snapshot", f"{report.request.snapshot}  (pytorch.org/memory_viz shows it)")
        if folder is not None:
            written = [name for name in (*NAMES, JOURNAL) if (folder / name).exists()]
            display.say("wrote", f"{folder}/  {'  '.join(written)}")

    def draw_it(report: Report) -> None:
        if plot is not None and report.samples:
            draw(picture(report.evidence), Path(plot))
            if not quiet:
                display.say("drew", plot)

    try:
        watcher, echo = None if quiet else display, display.echo if verbose else None
        folder: Path | None
        if resume is not None:
            kept = _only_what_a_run_takes_up(options)
            report, folder = pipeline.resume(Path(resume), **kept, watcher=watcher, echo=echo)
        else:
            report, folder = pipeline.run(_request(options), out=Path(out), watcher=watcher, echo=echo)
        show(report, folder)
        draw_it(report)
    except (Exception, Interrupted) as error:
        so_far: Report | None = getattr(error, "report", None)
        folder = getattr(error, "folder", None)
        if so_far is not None:
            show(so_far, folder)
            try:
                draw_it(so_far)
            except AutoaccumError as other:  # the error that ended the run stays the one to tell of
                display.say("warning", str(other), style="yellow")
        if isinstance(error, Interrupted) and folder is not None and not quiet:
            display.say("resume", f"autoaccum probe --resume {folder}")
        raise
    finally:
        display.close()


def _request(options: dict[str, Any]) -> Request:
    from autoaccum.records import Request

    if options["workload"] is None:
        raise click.UsageError("give the Python file of the workload, or --resume RUN")
    if options["target_batch"] is None:
        raise click.UsageError("Missing option '--target-batch': the effective batch to reach")
    asked = {name: value for name, value in options.items() if name != "no_rehearse"}
    return Request(**asked, rehearse=not options["no_rehearse"])


def _only_what_a_run_takes_up(options: dict[str, Any]) -> dict[str, Any]:
    """Give the options that may be new when a run is continued; raise for others."""
    new = ("tune_trials", "tune_seconds", "storage", "snapshot")
    source = click.get_current_context().get_parameter_source
    given = [name for name in options if source(name) is ParameterSource.COMMANDLINE]
    for name in given:
        if name not in new:
            what = "FILE" if name == "workload" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"a run is continued as it was begun: leave {what} out beside --resume")
    return {name: options[name] for name in given}

"""The command line: options in, exit codes out; no logic of its own.

Heavy imports wait until a command runs: `autoaccum --help` loads click and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from autoaccum._version import __version__
from autoaccum.errors import AutoaccumError, Interrupted

if TYPE_CHECKING:
    from autoaccum.records import Request


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="autoaccum")
def cli() -> None:
    """Find the micro-batch and accumulation steps that reach your effective batch exactly.

    \b
    autoaccum probe model.py --target-batch 512
    autoaccum verify model.py
    autoaccum env
    """


@cli.command()
@click.argument("workload", metavar="[FILE[:NAME]]", required=False)
@click.option("--target-batch", type=int, metavar="N", help="The effective batch to reach, exactly.")
@click.option("--memory-budget", metavar="SIZE", help="20GiB, 20GB or 80%.  [default: what is free, less a reserve]")
@click.option(
    "--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda[:N] or virtual:SIZE."
)
@click.option("--world-size", type=int, default=1, show_default=True, metavar="N", help="Ranks sharing the batch.")
@click.option("--reference-batch", type=int, metavar="N", help="The batch that your recipe was made for, for advice.")
@click.option("--split", default="auto", show_default=True, metavar="KIND", help="auto, even or uneven micro-batches.")
@click.option("--find-max", is_flag=True, help="Find the exact largest micro-batch, beyond what the plan needs.")
@click.option(
    "--tune-trials", type=int, default=16, show_default=True, metavar="N", help="To tune the speed; 0 turns it off."
)
@click.option(
    "--tune-seconds", type=float, default=60.0, show_default=True, metavar="SECONDS", help="For tuning, about."
)
@click.option(
    "--allow", metavar="LIST", help="bf16,fp16,tf32,compile,checkpoint,channels_last: what tuning may turn on."
)
@click.option(
    "--objective", default="throughput", show_default=True, metavar="WHAT", help="throughput, or energy per sample."
)
@click.option("--storage", metavar="URL", help="Of the Optuna study.  [default: a journal in the run folder]")
@click.option("--resume", metavar="RUN", help="Go on with the run in this folder; give no FILE.")
@click.option("--out", default="results", show_default=True, metavar="DIR", help="Where the run folder goes.")
@click.option("--json", "as_json", is_flag=True, help="Print the report on stdout, and nothing else there.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the workload's RNGs.")
@click.option("--timeout", type=float, default=600.0, show_default=True, metavar="SECONDS", help="For one trial.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@click.option("-v", "--verbose", is_flag=True, help="Show what the workload prints, and its tracebacks.")
def probe(as_json: bool, out: str, quiet: bool, verbose: bool, resume: str | None, **options: Any) -> None:
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
      autoaccum probe --resume results/model-2026-11-18-001

    Exit codes: 0 plan found, 1 internal error, 2 usage, 3 nothing fits, 4 the workload raised,
    5 no usable device, 130 interrupted.
    """
    from autoaccum import pipeline
    from autoaccum.display import Display, plan_line
    from autoaccum.report.files import NAMES
    from autoaccum.report.files import as_json as as_json_text
    from autoaccum.report.record import Report
    from autoaccum.tuning.costs import gained
    from autoaccum.tuning.results import JOURNAL

    display = Display(sys.stderr)

    def show(report: Report, folder: Path | None) -> None:
        display.close()
        if as_json:
            _print(as_json_text(report), folder)
        elif report.plan is not None and report.budget is not None:
            _print(plan_line(report.plan, report.budget), folder)
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
        if folder is not None:
            written = [name for name in (*NAMES, JOURNAL) if (folder / name).exists()]
            display.say("wrote", f"{folder}/  {'  '.join(written)}")

    try:
        watcher, echo = None if quiet else display, display.echo if verbose else None
        folder: Path | None
        if resume is not None:
            kept = _only_what_a_run_takes_up(options)
            report, folder = pipeline.resume(Path(resume), **kept, watcher=watcher, echo=echo)
        else:
            report, folder = pipeline.run(_request(options), out=Path(out), watcher=watcher, echo=echo)
        show(report, folder)
    except (AutoaccumError, Interrupted) as error:
        if error.report is not None:
            show(error.report, error.folder)
        if isinstance(error, Interrupted) and error.folder is not None and not quiet:
            display.say("resume", f"autoaccum probe --resume {error.folder}")
        raise
    finally:
        display.close()


@cli.command()
@click.argument("workload", metavar="FILE[:NAME]")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict on stdout as JSON.")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the workload's RNGs.")
@click.option("--timeout", type=float, default=600.0, show_default=True, metavar="SECONDS", help="For all of it.")
@click.option("-q", "--quiet", is_flag=True, help="Show the verdict only.")
@click.option("-v", "--verbose", is_flag=True, help="Show what the workload prints, and its tracebacks.")
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
    click.echo(verification.as_json(verdict) if as_json else verdict.line)
    for word, text in () if quiet else verification.details(verdict):
        display.say(word, text)
    raise click.exceptions.Exit(verdict.exit_code)


@cli.command()
@click.option(
    "--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda[:N] or virtual:SIZE."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def env(device: str, as_json: bool) -> None:
    """Say what is found here: device, memory, driver, versions.

    \b
    Examples:
      autoaccum env
      autoaccum env --device cuda:1 --json
    """
    from autoaccum.environment import describe, lines

    found = describe(device)
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))


def main() -> NoReturn:
    """Run the command line; every way out is an exit code and at most one line."""
    signal.signal(signal.SIGTERM, _interrupt)  # a scheduler's way to say Ctrl-C
    verbose = any(argument in ("-v", "-qv", "-vq", "--verbose") for argument in sys.argv)
    try:
        code = cli.main(standalone_mode=False)
    except (AutoaccumError, Interrupted) as error:
        _fail(str(error), error.exit_code, getattr(error, "details", "") if verbose else "")
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130)
    except Exception as error:
        details = traceback.format_exc() if verbose else ""
        _fail(f"internal error: {type(error).__name__}: {error} (-v shows the traceback; please report it)", 1, details)
    sys.exit(code)


def _request(options: dict[str, Any]) -> Request:
    from autoaccum.records import Request

    if options["workload"] is None:
        raise click.UsageError("give the Python file of the workload, or --resume RUN")
    if options["target_batch"] is None:
        raise click.UsageError("Missing option '--target-batch': the effective batch to reach")
    return Request(**options)


def _only_what_a_run_takes_up(options: dict[str, Any]) -> dict[str, Any]:
    """Give the options that may be new when a run is continued; raise for others."""
    new = ("tune_trials", "tune_seconds", "storage")
    source = click.get_current_context().get_parameter_source
    given = [name for name in options if source(name) not in (None, ParameterSource.DEFAULT)]
    for name in given:
        if name not in new:
            what = "FILE" if name == "workload" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"a run is continued as it was begun: leave {what} out beside --resume")
    return {name: options[name] for name in given}


def _print(text: str, folder: Path | None) -> None:
    """Print the answer; where stdout cannot take it, say where else it is."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  (nothing more is to be flushed at exit)
        raise AutoaccumError(f"stdout cannot be written: {error.strerror}; the report is in {folder}") from error


def _fail(message: str, code: int, details: str = "") -> NoReturn:
    if details:
        click.echo(details.rstrip(), err=True)
    click.echo(f"error: {message}", err=True)
    sys.exit(code)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt

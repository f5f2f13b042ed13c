"""The command line: commands in, exit codes out; each command has a file in commands/.

Heavy imports wait until a command runs: `autoaccum --help` loads click and nothing else.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from typing import NoReturn

import click

from autoaccum._version import __version__
from autoaccum.commands.compare import compare
from autoaccum.commands.env import env
from autoaccum.commands.plan import plan
from autoaccum.commands.probe import probe
from autoaccum.commands.rehearse import rehearse
from autoaccum.commands.report import report
from autoaccum.commands.show import show
from autoaccum.commands.verify import verify
from autoaccum.errors import AutoaccumError, Interrupted


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="autoaccum")
def cli() -> None:
    """Find the micro-batch and accumulation steps that reach your effective batch exactly.

    \b
    Examples:
      autoaccum probe model.py --target-batch 512        measure, and give the plan
      autoaccum rehearse model.py --target-batch 512 --gpu l4,a100-40gb    plans for GPUs elsewhere
      autoaccum plan RUN --target-batch 1024             ask a run that was made before
      autoaccum show RUN                                 look at it again
      autoaccum verify model.py                          does accumulating suit the model?

    Every option can be given as a variable too: AUTOACCUM_MEMORY_BUDGET=20GiB.
    """


for _command in (probe, rehearse, plan, show, report, compare, verify, env):
    cli.add_command(_command)


def main() -> NoReturn:
    """Run the command line; every way out is an exit code and at most one line."""
    signal.signal(signal.SIGTERM, _interrupt)  # a scheduler's way to say Ctrl-C
    for stream in (sys.stdout, sys.stderr):  # one that knows only ASCII shows what it can
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    given = os.environ.get("AUTOACCUM_VERBOSE", "").lower() in ("1", "true", "yes", "on")
    verbose = given or any(argument in ("-v", "-qv", "-vq", "--verbose") for argument in sys.argv)
    try:
        code = cli.main(standalone_mode=False)
    except (AutoaccumError, Interrupted) as error:
        _fail(str(error), error.exit_code, getattr(error, "details", "") if verbose else "")
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _fail("interrupted", 130)
    except Exception as error:
        details = traceback.format_exc() if verbose else ""
        hint = "AUTOACCUM_VERBOSE=1 shows the traceback; please report it"
        _fail(f"internal error: {type(error).__name__}: {error} ({hint})", 1, details)
    sys.exit(code)


def _fail(message: str, code: int, details: str = "") -> NoReturn:
    if details:
        click.echo(details.rstrip(), err=True)
    click.echo(f"error: {message}", err=True)
    sys.exit(code)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt

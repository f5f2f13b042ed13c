"""What the commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from autoaccum.errors import AutoaccumError, UsageError

F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """An option that can also be given as a variable: --memory-budget as AUTOACCUM_MEMORY_BUDGET."""

    def __init__(self, declarations: list[str], **more: Any) -> None:
        longest = max(declarations, key=lambda text: text.startswith("--"))
        more.setdefault("envvar", f"AUTOACCUM_{longest.lstrip('-').replace('-', '_').upper()}")
        super().__init__(declarations, **more)

    def by_variable(self, ctx: click.Context) -> bool:
        """Whether the value comes from the variable."""
        return self.name is not None and ctx.get_parameter_source(self.name) is ParameterSource.ENVIRONMENT

    def is_meant_by(self, message: str, ctx: click.Context) -> bool:
        """Whether a message speaks of this option: by its name, or by its value."""
        return max(self.opts, key=len) in message or f'"{ctx.params.get(self.name or "")}"' in message

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Name the variable where the value comes from it, else the option."""
        return f"{self.envvar}" if ctx is not None and self.by_variable(ctx) else super().get_error_hint(ctx)


class Command(click.Command):
    """A command that says where a wrong value came from: nobody looks for it in a variable."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            given = [option for option in self.params if isinstance(option, Option) and option.by_variable(ctx)]
            blamed = [str(option.envvar) for option in given if option.is_meant_by(str(error), ctx)]
            if blamed:
                error.args = (f"{error} (from the environment: {', '.join(blamed)})",)
            raise


def command() -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command, as click.command does."""
    return click.command(cls=Command)


def option(*declarations: str, **more: Any) -> Callable[[F], F]:
    """Declare an option, as click.option does."""
    return click.option(*declarations, cls=Option, **more)


def print_answer(text: str, elsewhere: str = "") -> None:
    """Print the answer on stdout; where that cannot take it, say where else it is."""
    with answering(elsewhere):
        click.echo(text)


@contextmanager
def answering(elsewhere: str = "") -> Iterator[None]:
    """Let the answer be written to stdout within; where that cannot take it, say where else it is."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  (nothing more is to be flushed at exit)
        raise AutoaccumError(f"stdout cannot be written: {error.strerror or error}{elsewhere}") from error

"""What the commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from autoaccum.errors import AutoaccumError

F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """An option that can also be given as a variable: --memory-budget as AUTOACCUM_MEMORY_BUDGET."""

    def __init__(self, declarations: list[str], **more: Any) -> None:
        longest = max(declarations, key=lambda text: text.startswith("--"))
        more.setdefault("envvar", f"AUTOACCUM_{longest.lstrip('-').replace('-', '_').upper()}")
        super().__init__(declarations, **more)


def option(*declarations: str, **more: Any) -> Callable[[F], F]:
    """Declare an option, as click.option does."""
    return click.option(*declarations, cls=Option, **more)


def print_answer(text: str, elsewhere: str = "") -> None:
    """Print the answer on stdout; where that cannot take it, say where else it is."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  (nothing more is to be flushed at exit)
        raise AutoaccumError(f"stdout cannot be written: {error.strerror}{elsewhere}") from error

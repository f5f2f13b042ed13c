"""Files for people: a wrong path is told of before anything is run, and a file is whole or as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autoaccum.errors import UsageError


def check_file(option: str, path: Path) -> None:
    """Raise for what can be seen to be wrong with a path before there is anything to write."""
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder: give a file")
    if path.exists() and not path.is_file():
        raise UsageError(f"{option} {path} is no ordinary file: give another")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{option} {path}: nothing can be written into {path.parent}")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a path beside the file's to write to; what is there at the end takes the file's place.

    A full disk leaves what was there before.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}; what was there before is whole"
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)

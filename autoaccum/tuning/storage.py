"""Where a study is kept: a journal in the run folder, another one, or a database that many machines share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend

from autoaccum.errors import UsageError
from autoaccum.tuning.results import JOURNAL, shown

_OPENINGS = 4  # tries to open a database


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from telling of every trial; the user's own studies are told of as before."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def open_storage(storage: str | None, folder: Path | None) -> tuple[BaseStorage, str]:
    """Give the storage that `storage` names, and its name for the report.

    It is a database's URL or a journal's path; by default a journal in the run folder, without one in memory.
    """
    if storage is None and folder is None:
        return InMemoryStorage(), ""
    if storage is not None and "://" in storage:
        return _database(storage), shown(storage) or ""
    path = Path(storage) if storage is not None else (folder or Path()) / JOURNAL
    if not path.parent.is_dir():
        raise UsageError(f"--storage {path}: there is no folder {path.parent}")
    try:
        journal = JournalStorage(JournalFileBackend(str(path)))
        journal.get_all_studies()
    except OSError as error:
        raise UsageError(f"--storage {path} cannot be opened: {error.strerror}") from error
    except Exception as error:  # whatever is in the file
        raise UsageError(
            f"--storage {path} is not a journal of Optuna: give a database's URL, or another path"
        ) from error
    return journal, JOURNAL if storage is None else storage


def _database(url: str) -> BaseStorage:
    for attempt in range(_OPENINGS):
        try:
            return optuna.storages.get_storage(url)
        except Exception as error:  # whatever a database's driver raises; the URL is the user's
            # Several that start at once all make the tables of a new database, and all but one fail.
            if attempt + 1 < _OPENINGS:
                time.sleep(0.3)
                continue
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UsageError(f"--storage {shown(url)} cannot be opened: {reason}") from error
    raise AssertionError("unreachable")

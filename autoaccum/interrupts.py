"""Ctrl-C at the right moment only: not while something is written, at most once while something must be undone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a Ctrl-C pass by: what was measured is being written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def then_restore(work: Callable[[Callable[[], None]], Any], restore: Callable[[], None]) -> Any:
    """Give what `work` gives, after `restore`, which runs to its end whenever Ctrl-C is pressed, and how often.

    The first Ctrl-C ends `work`, further ones wait. `work` is given a function that raises where the first one was
    swallowed, as it is in a destructor.
    """
    gate = _Gate()
    try:
        # Two blocks: a Ctrl-C between the end of the work and the closing of the gate ends up in the outer one.
        try:
            gate.install()
            return work(gate.check)
        finally:
            gate.close()
    finally:
        try:
            restore()
        finally:
            gate.remove()


class _Gate:
    """A handler of SIGINT that passes on one signal, and only as long as it is open."""

    def __init__(self) -> None:
        self._open = True
        self._passed = False
        self._waiting = False
        self._before: Any = signal.getsignal(signal.SIGINT)
        # Elsewhere no signal arrives; and a handler that is not Python's raises nothing.
        main = threading.current_thread() is threading.main_thread()
        self._needed = main and callable(self._before)

    def install(self) -> None:
        """Stand before the present handler."""
        if self._needed:
            signal.signal(signal.SIGINT, self._handle)

    def check(self) -> None:
        """Raise where a Ctrl-C has been passed on, and yet the work goes on."""
        if self._passed:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Let signals wait from now on."""
        self._open = False

    def remove(self) -> None:
        """Put the earlier handler back, and give it the signal that waited."""
        if self._needed:
            signal.signal(signal.SIGINT, self._before)
            if self._waiting and not self._passed:
                self._before(signal.SIGINT, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._open:
            self._waiting = True
            return
        self._open, self._passed = False, True
        self._before(number, frame)
        self._open, self._passed = True, False  # the user's own handler, which did not raise

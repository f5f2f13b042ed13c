"""What comes from a worker: answers, line by line, and what the user's code prints."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from autoaccum.records import TRIAL_MARK

_TAIL_BYTES = 1 << 16

Echo = Callable[[bytes], None]


class Lines:
    """JSON lines from a pipe, with a time limit, until the writer's death.

    The end of file alone would not tell of it: what the user's code forked may hold the pipe open.
    """

    def __init__(self, fd: int, death: int) -> None:
        self._fd = fd
        self._rest = b""
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._poll.register(death, select.POLLIN)

    def next(self, seconds: float) -> dict[str, Any] | None:
        """Give the next line; None if there is no more to come."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            ready = {fd for fd, _ in self._poll.poll(min(left, 60.0) * 1000)}
            if self._fd in ready:
                chunk = os.read(self._fd, 1 << 16)
                if not chunk:
                    return None
                self._rest += chunk
            elif ready:
                return None
        line, self._rest = self._rest.split(b"\n", 1)
        content: dict[str, Any] = json.loads(line)
        return content

    def close(self) -> None:
        """Read no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Tail(threading.Thread):
    """Drains what the worker prints, so that it never blocks, and keeps the end of it."""

    def __init__(self, process: subprocess.Popen[bytes], echo: Echo | None) -> None:
        super().__init__(daemon=True)
        self._stream = process.stdout
        self._echo = echo
        self._kept = b""
        self.start()

    def run(self) -> None:
        """Read until the worker, and what it started, have closed it."""
        if self._stream is None:
            return
        while chunk := os.read(self._stream.fileno(), 1 << 16):
            self._kept = (self._kept + chunk)[-_TAIL_BYTES:]
            if self._echo is not None:
                self._echo(chunk.replace(TRIAL_MARK, b""))

    def text(self) -> str:
        """Give what was printed since the last trial began."""
        return self._kept.rpartition(TRIAL_MARK)[2].decode(errors="replace")

    def finish(self, seconds: float) -> None:
        """Wait for the end of what is printed, so long at most."""
        self.join(seconds)
        if self._stream is not None and not self.is_alive():
            self._stream.close()

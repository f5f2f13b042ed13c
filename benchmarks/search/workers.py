"""autoaccum's workers as forks: `autoaccum.worker` runs unchanged, in a process that need not import torch first."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from autoaccum import isolate, worker
from autoaccum.device.cuda import CudaDevice
from autoaccum.virtual import control
from benchmarks.search.forks import Variables, become


@contextmanager
def forked() -> Iterator[None]:
    """Have the workers that are started within be forks of this process, which must not have a CUDA context."""
    stand_in = SimpleNamespace(Popen=_Forked, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)
    with patch.object(isolate, "subprocess", stand_in):
        yield


class _Forked:
    """What isolate.py takes for a process that it started: as much of subprocess.Popen as it uses."""

    def __init__(self, command: Sequence[str], *, pass_fds: Sequence[int], env: Variables, **_: Any) -> None:
        orders, told = os.pipe()
        heard, printed = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _work(orders, printed, pass_fds[0], env)
        os.close(orders)
        os.close(printed)
        self.stdin, self.stdout = os.fdopen(told, "wb"), os.fdopen(heard, "rb")

    def wait(self) -> int:
        """Wait for the end, and give the exit code."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _work(orders: int, printed: int, answers: int, env: Variables) -> None:
    """Be a worker until there are no more orders, with nothing of its parent's but what was imported."""
    code = 1
    try:
        os.setsid()
        os.dup2(orders, 0)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        os.closerange(3, answers)
        os.closerange(answers + 1, 1024)
        faulthandler.enable(2)
        os.environ.clear()
        become(env)
        CudaDevice.timed = control.has_time()  # it is taken for a real GPU, but for the clock
        sys.argv = [worker.__file__, str(answers)]
        worker.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)

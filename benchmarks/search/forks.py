"""Fresh processes without the seconds that importing torch takes: forks of a server that has imported everything.

    python -m benchmarks.search.forks MODULE ...     the server: a task on each line of stdin, a row of JSON for each

A server never makes a CUDA context, so that each fork makes its own, on a virtual GPU of its own, as a process does.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from autoaccum.virtual import control

Row = dict[str, Any]  # plain data
Variables = Mapping[str, str]

_HERE = Path(__file__).resolve().parent
_MOST_SECONDS = 900.0
_PR_SET_PDEATHSIG = 1


def apart(do: Callable[..., Row], given: Mapping[str, Any], variables: Variables) -> Row:
    """Give what a function returns in a fork on the GPU that the variables describe, or how that crashed."""
    answer, out = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        _answer(do, given, variables, out)
    os.close(out)
    said = _read(answer, time.monotonic() + _MOST_SECONDS)
    if said is None:
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if said:
        row: Row = json.loads(said)
        return row
    ended = f"ended with {code}" if said is not None else f"did not end within {_MOST_SECONDS:g} s"
    return {"crash": f"the process {ended}"}


def _answer(do: Callable[..., Row], given: Mapping[str, Any], variables: Variables, out: int) -> None:
    """Do it, write what it returns, and end."""
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        become(variables)
        row = do(**given)
    except BaseException as error:
        traceback.print_exc()
        row = {"crash": "".join(traceback.format_exception_only(error)).strip()[:300]}
    sys.stderr.flush()
    rest = json.dumps(row).encode()
    while rest:
        rest = rest[os.write(out, rest) :]
    os._exit(0)


def _read(answer: int, until: float) -> bytes | None:
    """Give all that is written until the other end is closed; None where that takes too long."""
    said = b""
    with os.fdopen(answer, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            chunk = pipe.read(1 << 16)
            if not chunk:
                return said
            said += chunk
    return None


def become(variables: Variables) -> None:
    """Put this process, which has no context yet, on the GPU that the variables describe.

    The libraries of the virtual GPU read them as torch is imported, which was in another process.
    """
    os.environ.update(variables)
    if not control.is_active():
        return
    core = control._core()
    core.vg_config_load()
    core.vg_clock_load()
    if int(os.environ["AUTOACCUM_VIRTUAL_DEVICES"]):
        control.set_total_bytes(int(os.environ["AUTOACCUM_VIRTUAL_TOTAL_BYTES"]))
        control.set_other_bytes(int(os.environ["AUTOACCUM_VIRTUAL_OTHER_BYTES"]))


def main() -> None:
    """Import what is named, then fork a process for each task."""
    sys.path.insert(0, str(_HERE / "workloads"))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not a row
    for name in sys.argv[1:]:
        import_module(name)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise SystemExit("an import has made a CUDA context: no fork would be a fresh process")
    gc.collect()
    gc.freeze()  # else each trial, which collects garbage, looks through all that was imported
    for line in sys.stdin:
        task = json.loads(line)
        module, _, name = task["do"].rpartition(".")
        began = time.monotonic()
        row = apart(getattr(import_module(module), name), task["given"], task["variables"])
        row = {"key": task["key"], "seconds": round(time.monotonic() - began, 3), **row}
        print(json.dumps(row), file=out, flush=True)


if __name__ == "__main__":
    main()

"""Out of memory, under all its names.

An allocator that is out of memory says so in many ways, and on the CPU it may not say anything:
the process dies. This module is the only place that knows them all.

    raised   torch.OutOfMemoryError, MemoryError, OSError(ENOMEM), RuntimeError or SystemError with a known text
    printed  std::bad_alloc, libgomp's "Thread creation failed": the process aborts or exits
    silent   SIGSEGV, SIGABRT or SIGBUS under a memory limit, where a smaller size ran
"""

from __future__ import annotations

import errno
import re
import signal

from autoaccum.records import Outcome

# Texts that mean out-of-memory wherever they appear, in lower case.
_TEXTS = (
    # CPU: torch's allocator on Linux and elsewhere
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
    "enforce fail at alloc_cpu",
    # CPU: oneDNN, whose scratch pads and primitives are allocated behind torch's back
    "could not create a primitive",
    "could not execute a primitive",
    "could not create a memory object",
    "failed to allocate memory for scratchpad",
    # CPU: the C and C++ runtimes
    "posix_memalign failed",
    "bad_alloc",
    "bad allocation",
    "cannot allocate memory",
    "thread creation failed",
    "can't start new thread",
    "unable to mmap",
    "is killed by signal",  # a DataLoader's worker, under the same limit
    # CUDA and HIP: torch, the driver, and the libraries that allocate on their own
    "out of memory",
    "cuda_error_out_of_memory",
    "cublas_status_alloc_failed",
    "cublas_status_not_initialized",
    "cudnn_status_alloc_failed",
    "cudnn_status_internal_error_host_allocation_failed",
    "cusolver_status_alloc_failed",
    "cusparse_status_insufficient_resources",
    "cufft_alloc_failed",
    "failed to cuda calloc",
    "failed to cuda host alloc",
    # MPS and XPU ("MPS backend out of memory" is covered above)
    "invalid buffer size",
    "out_of_device_memory",
    "out_of_host_memory",
    "out_of_resources",
)
_NO_WORD = "error return without exception set"  # C code that had no memory left to raise with
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS}
_REQUEST = (
    re.compile(r"tried to allocate (?P<n>[0-9.]+) (?P<unit>bytes|[KMGT]iB)", re.IGNORECASE),
    re.compile(r"allocate (?P<n>[0-9]+) (?P<unit>bytes)", re.IGNORECASE),
)
_UNIT = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def is_oom_text(text: str) -> bool:
    """Whether `text`, an error message or what a process printed, tells of out-of-memory."""
    lowered = text.lower()
    return any(known in lowered for known in _TEXTS)


def is_oom(error: BaseException | None) -> bool:
    """Whether `error`, or an error that it was raised from, is an out-of-memory."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        if isinstance(error, RuntimeError) and is_oom_text(str(error)):
            return True
        if isinstance(error, SystemError) and _NO_WORD in str(error):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def requested_bytes(message: str) -> int | None:
    """Give the size of the allocation that failed, where the message names it."""
    for pattern in _REQUEST:
        match = pattern.search(message)
        if match is not None:
            return int(float(match["n"]) * _UNIT[match["unit"].lower()])
    return None


def cause_of_death(returncode: int, printed: str, *, smaller_ran: bool) -> tuple[Outcome, str]:
    """Name what a worker that ended in the middle of a trial died of.

    `printed` is the tail of its output. A crash counts as out-of-memory when it says so, or when a
    smaller size ran before: oneDNN's threads crash without a word when an allocation fails.
    """
    if returncode >= 0:
        if is_oom_text(printed):
            return Outcome.OOM, f"the process ran out of memory and ended itself (exit code {returncode})"
        last = printed.strip().rpartition("\n")[2][:300]
        said = f"; it printed last: {last}" if last else ""
        return Outcome.FAILED, f"the workload ended its own process (exit code {returncode}){said}"
    number = -returncode
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number in _CRASHES:
        if is_oom_text(printed):
            return Outcome.OOM, f"the process ran out of memory and crashed ({name})"
        if smaller_ran:
            return Outcome.OOM, f"the process crashed ({name}) where a smaller size ran"
        return Outcome.KILLED, f"the process crashed ({name})"
    if number == signal.SIGKILL:
        return (
            Outcome.KILLED,
            "the process was killed (SIGKILL), perhaps by the system's out-of-memory killer",
        )
    return Outcome.KILLED, f"the process was ended by {name}"

"""The child process: orders on stdin, one JSON line for each on a private pipe.

    python -m autoaccum.worker FD     started by isolate.py, with FD open for the answers

The user's code runs here, so it gets neither channel: its stdin is empty, and what it prints goes
to stderr. The process ends when its parent does, however that ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import queue
import select
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from autoaccum import alterations
from autoaccum._version import __version__
from autoaccum.device import Device, open_device
from autoaccum.device.base import budget_for
from autoaccum.errors import AutoaccumError
from autoaccum.records import TRIAL_MARK, Trial

if TYPE_CHECKING:
    from autoaccum.subject import FileSubject
    from autoaccum.trial import Runner

_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 5.0


def main() -> None:
    """Answer orders until there are no more."""
    orders, answers = _channels(int(sys.argv[1]))
    first = orders.get()
    if first is None:
        return
    try:
        device = open_device(first["device"])
        info = device.describe()
        alterations.check(first["alterations"], info.kind)
        limit = first["limit_bytes"]
        budget = None if limit is not None else budget_for(device, info, first["memory_budget"])
    except AutoaccumError as error:
        _answer(answers, error=type(error).__name__, message=str(error))
        return
    if first["exact_meter"]:
        device.meter_exactly()
    _answer(
        answers,
        device=asdict(info),
        budget=None if budget is None else asdict(budget),
        timed=device.timed,
        energy_source=device.energy_source,
        environment=environment(),
        warnings=device.warnings,
    )
    if first["workload"] is not None:
        _serve(orders, answers, device, first, limit if budget is None else budget.limit_bytes)


def _serve(
    orders: queue.Queue[dict[str, Any] | None], answers: TextIO, device: Device, first: dict[str, Any], limit: int
) -> None:
    from autoaccum.subject import FileSubject
    from autoaccum.trial import Runner

    subject = FileSubject(first["workload"], device, first["seed"], first["alterations"])
    runner = Runner(subject, device, limit)
    while (order := orders.get()) is not None:
        os.write(2, TRIAL_MARK)
        if "ask" in order:
            with device.limited(limit):
                _answer(answers, **_aside(order, subject, runner, device))
            continue
        sample = runner.run(order["number"], Trial.from_dict(order["trial"]))
        broken = not sample.ok and not _usable(device)
        model = subject.take_stock()
        warnings = [*device.warnings, *runner.warnings]
        windows = [asdict(window) for window in runner.windows]
        known = None if model is None else asdict(model)
        _answer(answers, sample=asdict(sample), windows=windows, model=known, warnings=warnings, last=broken)
        if broken:
            return


def _aside(order: dict[str, Any], subject: FileSubject, runner: Runner, device: Device) -> dict[str, Any]:
    """Answer what is no trial: which knobs there are, how samples see each other, whether accumulating is exact.

    And where the memory of a trial goes, and what a pass computes and reads.
    """
    if order["ask"] == "unsupported":
        from autoaccum.knobs.support import unsupported

        runner.start_over()  # what the last trial turned is not the user's
        parts = subject.parts()
        knobs = unsupported(parts.model, parts.optimizers, device.torch_device)
        return {"unsupported": {**knobs, **subject.idle_alterations()}}
    if order["ask"] == "couplings":
        from autoaccum.equivalence.couplings import warnings_of

        return {"warnings": warnings_of(subject, device, order["largest_ok"])}
    try:
        if order["ask"] == "dissect":
            from autoaccum.anatomy.dissect import dissect

            snapshot = None if order["snapshot"] is None else Path(order["snapshot"])
            return {"anatomy": asdict(dissect(subject, runner, device, Trial.from_dict(order["trial"]), snapshot))}
        if order["ask"] == "traits":
            from autoaccum.anatomy.observe import observe

            return {"traits": asdict(observe(subject, runner, order["micro_batch"]))}
        from autoaccum.equivalence.examine import examine_subject

        return {"verdict": asdict(examine_subject(subject))}
    except AutoaccumError as error:
        return {"error": type(error).__name__, "message": str(error), "details": error.details}


def environment() -> dict[str, Any]:
    """Say what the trials run on: versions, platform, threads."""
    import torch

    return {
        "autoaccum": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "architectures": " ".join(torch.cuda.get_arch_list()) if torch.version.cuda else None,
        "cudnn": _cudnn() if torch.version.cuda else None,
        "driver": _driver() if torch.version.cuda else None,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "alloc_conf": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF"),
    }


def _cudnn() -> int | None:
    import torch

    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version


def _driver() -> str | None:
    from autoaccum.device.nvml import Nvml

    return Nvml().driver_version()


def _usable(device: Device) -> bool:
    """Whether the device still answers: some CUDA errors leave it broken for the whole process."""
    try:
        device.synchronize()
    except RuntimeError:
        return False
    return True


def _channels(answer_fd: int) -> tuple[queue.Queue[dict[str, Any] | None], TextIO]:
    """Take both channels out of the user's reach and tie this process to its parent."""
    os.set_inheritable(answer_fd, False)
    orders_fd = os.dup(0)
    _post_guard(orders_fd)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
    threading.Thread(target=_listen, args=(orders_fd, orders), daemon=True).start()
    return orders, os.fdopen(answer_fd, "w", encoding="utf-8")


def _listen(fd: int, orders: queue.Queue[dict[str, Any] | None]) -> None:
    with os.fdopen(fd, encoding="utf-8") as lines:
        for line in lines:
            orders.put(json.loads(line))
    orders.put(None)  # the parent is gone, or wants no more


def _post_guard(orders_fd: int) -> None:
    """Leave a process in the group that ends the group once the parent is gone, however that went.

    The kernel kills this process with its parent, but not what the user's code started. The guard is nobody's
    child here (forked twice), so that the user's code never waits for it.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if os.fork():
        os._exit(0)
    os.dup2(orders_fd, 0)
    os.closerange(1, 1024)
    hangup = select.poll()
    hangup.register(0, 0)  # asks for nothing, and is told of the hang-up all the same
    hangup.poll()
    time.sleep(_GRACE_SECONDS)  # for a worker that ends by itself
    os.killpg(0, signal.SIGKILL)


def _answer(answers: TextIO, **content: Any) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()

"""The parent's side of the worker: start it, order trials, time out, name what it died of.

Nothing here touches a device. A worker leads a process group of its own, so that whatever the
user's code starts ends with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from autoaccum import device as devices
from autoaccum import errors
from autoaccum.anatomy.record import Anatomy
from autoaccum.anatomy.traits import Traits
from autoaccum.equivalence.verdicts import Verdict
from autoaccum.oom import cause_of_death
from autoaccum.pipes import Echo, Lines, Tail
from autoaccum.records import Budget, DeviceInfo, ModelInfo, Outcome, Sample, Trial, Window

_START_SECONDS = 120.0  # importing torch from a cold network disk takes its time
_STOP_SECONDS = 5.0

Lost = tuple[Outcome, str]  # how a worker ended in the middle of an order, and in words


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """What a worker is told first."""

    device: str
    workload: str | None = None  # None: only describe the device
    memory_budget: str | None = None
    limit_bytes: int | None = None  # decided by an earlier worker; stands above memory_budget
    seed: int = 0
    exact_meter: bool = True
    variables: dict[str, str] = field(default_factory=dict)  # of the environment, as training would set them
    alterations: tuple[str, ...] = ()  # of the workload, by their names in autoaccum.alterations


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """What a worker says first."""

    device: DeviceInfo
    budget: Budget | None
    timed: bool  # whether a clock says anything about the device
    energy_source: str | None  # where joules come from
    environment: dict[str, Any]
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a worker says to a trial; made up here when it died of it."""

    sample: Sample
    windows: tuple[Window, ...] = ()
    model: ModelInfo | None = None
    warnings: tuple[str, ...] = ()


class Worker:
    """A child process that runs trials, from `with` to the end of its block at most."""

    def __init__(self, spec: WorkerSpec, *, timeout_seconds: float, echo: Echo | None = None) -> None:
        self.alive = True
        self.trials = 0
        self.variables = spec.variables
        self._timeout_seconds = timeout_seconds
        environment = _child_environment(spec)
        read_fd, write_fd = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-X", "faulthandler", "-m", "autoaccum.worker", str(write_fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_fd,),
            start_new_session=True,
            env=environment,
        )
        os.close(write_fd)
        self._death = os.pidfd_open(self._process.pid)
        self._answers = Lines(read_fd, self._death)
        self._printed = Tail(self._process, echo)
        try:
            self.ready = self._begin(spec)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill() if error is not None else self.close()

    def run(self, number: int, trial: Trial, *, smaller_ran: bool) -> Answer:
        """Run one trial; a worker that dies or hangs over it gives a sample all the same."""
        self.trials += 1
        order = {"number": number, "trial": asdict(trial)}
        content = self._ask(order, self._allowed(trial), smaller_ran=smaller_ran)
        if isinstance(content, tuple):
            return Answer(sample=_lost(number, trial, *content, self._printed.text()))
        if content["last"]:
            self.close()
        return Answer(
            sample=Sample.from_dict(content["sample"]),
            windows=tuple(Window.from_dict(window) for window in content["windows"]),
            model=None if content["model"] is None else ModelInfo.from_dict(content["model"]),
            warnings=tuple(content["warnings"]),
        )

    def verify(self) -> Verdict:
        """Have the workload verified; raise what it raised, and for a worker that was lost over it."""
        content = self._demand({"ask": "verify"}, self._timeout_seconds, "verifying", "verify a smaller model")
        return Verdict.from_dict(content["verdict"])

    def dissect(self, trial: Trial, snapshot: Path | None) -> Anatomy:
        """Have a trial's memory taken apart, and its history written to `snapshot`; raise as `verify` does."""
        path = None if snapshot is None else os.fspath(snapshot.absolute())  # the workload may change the folder
        order = {"ask": "dissect", "trial": asdict(trial), "snapshot": path}
        content = self._demand(order, self._allowed(trial), "taking memory apart", "look for what it waits for")
        return Anatomy.from_dict(content["anatomy"])

    def traits(self, micro_batch: int) -> Traits:
        """Have an update of one micro-batch observed: what it computes, what it reads; raise as `verify` does."""
        order = {"ask": "traits", "micro_batch": micro_batch}
        content = self._demand(order, self._timeout_seconds, "observing an update", "look for what it waits for")
        return Traits.from_dict(content["traits"])

    def unsupported(self) -> dict[str, str] | None:
        """Give the knobs that cannot be turned here, each with the reason; None for a worker that was lost over it.

        And those of its alterations that changed nothing so far: for a loss, that shows once a trial has run.
        """
        content = self._ask({"ask": "unsupported"}, self._timeout_seconds)
        return None if isinstance(content, tuple) else content["unsupported"]

    def couplings(self, largest_ok: int) -> tuple[str, ...]:
        """Give the warnings of samples that see each other, from no more rows than ran; a lost worker saw none."""
        content = self._ask({"ask": "couplings", "largest_ok": largest_ok}, self._timeout_seconds)
        return () if isinstance(content, tuple) else tuple(content["warnings"])

    def close(self) -> None:
        """Let the worker end by itself, and see that it does."""
        if not self.alive:
            return
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._ended()
        self.kill()

    def kill(self) -> None:
        """End the worker and everything it started."""
        if not self.alive:
            return
        self.alive = False
        # The group is ended before its leader is reaped: until then its number belongs to nobody else.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._printed.finish(_STOP_SECONDS)
        self._answers.close()
        os.close(self._death)

    def _begin(self, spec: WorkerSpec) -> Ready:
        self._order(asdict(spec))
        try:
            content = self._answers.next(max(_START_SECONDS, self._timeout_seconds))
        except TimeoutError:
            raise errors.DeviceError("the worker process does not start: importing torch takes minutes") from None
        if content is None:
            returncode = self._reap()
            last = self._printed.text().strip().splitlines()[-1:] or ["it printed nothing"]
            raise errors.DeviceError(
                f"the worker process does not start (exit code {returncode}): {last[0]}",
                details=self._printed.text(),
            )
        if "error" in content:
            raise getattr(errors, content["error"])(content["message"])
        return Ready(
            device=DeviceInfo.from_dict(content["device"]),
            budget=None if content["budget"] is None else Budget.from_dict(content["budget"]),
            timed=content["timed"],
            energy_source=content["energy_source"],
            environment=content["environment"],
            warnings=tuple(content["warnings"]),
        )

    def _allowed(self, trial: Trial) -> float:
        # A trial of more micro-steps than usual has as much more time; windows are counted so that they take little.
        return self._timeout_seconds * (1.0 if trial.phase == "tune" else max(1.0, trial.micro_steps / 4))

    def _demand(self, order: dict[str, Any], seconds: float, doing: str, mend: str) -> dict[str, Any]:
        """Give the worker's answer; raise what it raised, and for a worker that was lost over it."""
        content = self._ask(order, seconds)
        if isinstance(content, tuple):
            hint = "" if content[0] is Outcome.FAILED else f"; raise --timeout, or {mend}"
            raise errors.WorkloadError(f"{doing} did not end: {content[1]}{hint}", details=self._printed.text())
        if "error" in content:
            raise getattr(errors, content["error"])(content["message"], details=content["details"])
        return content

    def _ask(self, order: dict[str, Any], seconds: float, *, smaller_ran: bool = False) -> dict[str, Any] | Lost:
        """Give the worker's answer, or how it was lost over it."""
        self._order(order)
        try:
            content = self._answers.next(seconds)
        except TimeoutError:
            self.kill()
            return Outcome.TIMED_OUT, f"no answer within {seconds:g} s"
        if content is None:
            return cause_of_death(self._reap(), self._printed.text(), smaller_ran=smaller_ran)
        return content

    def _order(self, content: dict[str, Any]) -> None:
        if self._process.stdin is None:
            return
        with suppress(BrokenPipeError):  # it is dead: reading its answer tells of what
            self._process.stdin.write(json.dumps(content).encode() + b"\n")
            self._process.stdin.flush()

    def _reap(self) -> int:
        """Give the exit code of a worker that answers no more; it may only have closed its end."""
        ended = self._ended()
        self.kill()
        return self._process.returncode if ended else 1

    def _ended(self) -> bool:
        """Wait a little for the worker to end by itself, without reaping it."""
        return bool(select.select([self._death], [], [], _STOP_SECONDS)[0])


def _lost(number: int, trial: Trial, outcome: Outcome, message: str, printed: str) -> Sample:
    return Sample(
        trial=number,
        phase=trial.phase,
        micro_batch=trial.micro_batch,
        accumulation_steps=trial.accumulation_steps,
        outcome=outcome,
        message=message,
        options=trial.knobs.options,
        details=printed,
    )


def _child_environment(spec: WorkerSpec) -> dict[str, str]:
    """Give our environment and the device's, with this package importable also where it is not installed."""
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **spec.variables, **devices.environment(spec.device)}
    if Path(root).name not in ("site-packages", "dist-packages"):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), root]))
    if spec.exact_meter:
        environment["MKL_DISABLE_FAST_MM"] = "1"  # MKL's buffers for earlier sizes would count for later ones
    return environment

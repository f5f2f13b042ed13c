"""autoaccum finds the micro-batch and accumulation steps that reach your effective batch exactly.

One straight line, a room for each step:

    workload.py   the user's file, and what a batch is (batch.py)
    device/       what differs between machines: describe, limit, meter
    virtual/      a GPU that is not there: CUDA's memory, to the byte, on any Linux machine
    trial.py      real updates at one size give one Sample; oom.py knows every out-of-memory, looking.py what was needed
    subject.py    what a trial trains (parts.py), built from the file, and as it would be with alterations/
    worker.py     the child process that runs trials; isolate.py is the parent's side of it (and pipes.py)
    lab.py        one worker after another: a Sample for every Trial
    search.py     which size to try next, and when to stop; expectation.py bounds what a size will need
    fit.py        samples -> memory model and time model
    solve.py      models, budget and target -> ranked plans (plans.py)
    tuning/       which plan, with which knobs, is the fastest; Optuna
    confirm.py    the best plan once more, in a fresh process, as training will be
    planning.py   the line from search to confirm, for a file and for live objects
    recipe.py     what the plan means for learning rate and warm-up
    report/       JSON, CSV, HTML; other questions answered from a saved run; two runs compared
    pipeline.py   the line itself, and running.py a walk along it; advice.py says what to do if it ends without a plan
    cli.py        the command line, with a file for each command in commands/; checks.py sees what is wrong with it
    display/      the terminal: progress (watching.py), and the tables of saved runs

Beside it, each with a map of its own:

    rehearsal/    autoaccum rehearse: plans for GPUs that are not here, and where the search on a real one starts
    anatomy/      where a trial's memory goes, by kind and by module, and what it computes with
    pictures/     memory against the micro-batch, as a figure and as a file
    knobs/        precision, checkpointing, compile ...: how each is turned, in trials and in training
    training/     plan.stepper and plan.windows: the step that accumulates correctly
    live/         autoaccum.plan: the same line for live objects, with everything put back at its end
    equivalence/  autoaccum verify (verification.py): does accumulating equal the full batch?

records.py holds the values that cross rooms, errors.py the error tree with its exit codes, generators.py the random
generators; interrupts.py knows when a Ctrl-C may come through; outputs.py writes files whole, or not at all.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from autoaccum._version import __version__

if TYPE_CHECKING:
    from autoaccum.equivalence.verdicts import Verdict
    from autoaccum.errors import (
        AutoaccumError,
        AutoaccumWarning,
        DeviceError,
        Interrupted,
        NothingFits,
        UsageError,
        WorkloadError,
    )
    from autoaccum.live.planner import plan
    from autoaccum.pipeline import probe
    from autoaccum.plans import Plan
    from autoaccum.records import Outcome, Sample
    from autoaccum.rehearsal.record import Rehearsal
    from autoaccum.rehearsal.rehearse import rehearse
    from autoaccum.report.record import Report
    from autoaccum.verification import verify
    from autoaccum.workload import Workload

_HOMES = {
    "AutoaccumError": "errors",
    "AutoaccumWarning": "errors",
    "DeviceError": "errors",
    "Interrupted": "errors",
    "NothingFits": "errors",
    "Outcome": "records",
    "Plan": "plans",
    "Rehearsal": "rehearsal.record",
    "Report": "report.record",
    "Sample": "records",
    "UsageError": "errors",
    "Verdict": "equivalence.verdicts",
    "Workload": "workload",
    "WorkloadError": "errors",
    "plan": "live.planner",
    "probe": "pipeline",
    "rehearse": "rehearsal.rehearse",
    "verify": "verification",
}

__all__ = [
    "AutoaccumError",
    "AutoaccumWarning",
    "DeviceError",
    "Interrupted",
    "NothingFits",
    "Outcome",
    "Plan",
    "Rehearsal",
    "Report",
    "Sample",
    "UsageError",
    "Verdict",
    "Workload",
    "WorkloadError",
    "__version__",
    "plan",
    "probe",
    "rehearse",
    "verify",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    # Names are imported when they are used: `import autoaccum` itself costs nothing.
    if name in _HOMES:
        return getattr(import_module(f"autoaccum.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'autoaccum' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

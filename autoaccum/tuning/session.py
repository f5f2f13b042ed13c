"""A tuning from the plans of the search to plans in the order in which they were measured to be fast."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from autoaccum.fit import TimeModel, fit_memory, fit_time
from autoaccum.knobs import names
from autoaccum.lab import Lab
from autoaccum.plans import Plan
from autoaccum.records import PLAIN, Budget, DeviceInfo, Knobs, Request, Sample
from autoaccum.solve import WORTH_UNEVEN, Known, solve
from autoaccum.tuning.memory import MemoryBook
from autoaccum.tuning.results import Fate, Measurement, Tuned, Tuning, Watcher
from autoaccum.tuning.space import Candidate, Space
from autoaccum.tuning.stopwatch import Bench
from autoaccum.tuning.storage import open_storage, quiet
from autoaccum.tuning.study import Study
from autoaccum.tuning.tuner import Limits, Tuner

_APART = 1.3  # an uneven size is worth a look only so far from every even one
_FIRST = 2  # plans that are measured before anything is proposed


class TuningLab(Lab, Bench, Protocol):
    """A lab whose trials can be timed."""


def rescues(allow: str | None, unsupported: Mapping[str, str]) -> list[Knobs]:
    """Give knobs to search with where nothing fits without: what leaves the numbers as they are comes first."""
    allowed = [name for name in names.parse_allow(allow) if name not in unsupported]
    blocks = "all" if "checkpoint" in allowed else None
    precision = next((name for name in ("bf16", "fp16") if name in allowed), None)
    tries = [Knobs(checkpoint=blocks), Knobs(precision=precision), Knobs(checkpoint=blocks, precision=precision)]
    return list(dict.fromkeys(knobs for knobs in tries if knobs != PLAIN))


@dataclass(kw_only=True)
class Session:
    """One tuning of one run."""

    request: Request
    lab: TuningLab
    device: DeviceInfo
    budget: Budget
    limit_bytes: int
    unsupported: Mapping[str, str]  # knobs, each with why it cannot be turned here
    folder: Path | None  # the run folder; None: the study is kept in memory
    resumed: bool  # there was a run before in this folder, which ended or was cut off
    watcher: Watcher

    def __post_init__(self) -> None:
        self._tuner: Tuner | None = None
        self._largest: Candidate | None = None
        self._where = ""

    def run(self, plans: Sequence[Plan]) -> Tuned:
        """Tune the plans that the search found to fit, best first; they say which knobs the search stood on."""
        request, ground = self.request, names.of_options(plans[0].options)
        samples = [sample for sample in self.lab.samples if sample.options == ground.options]
        space = Space(
            plans=_sizes(request, samples, self.budget, ground, plans),
            values=_values(self._allowed(), ground),
            ground=ground,
        )
        fitting = {plan.micro_batch for plan in plans}
        memory = MemoryBook(
            ground=ground, fits=fitting.__contains__, model=fit_memory(samples), limit_bytes=self.limit_bytes
        )
        self._largest = Candidate(micro_batch=max(fitting & set(space.plans)), knobs=ground)
        with quiet():
            self._tuner = self._begin(space, memory)
            self._tuner.tune(_first(self._largest, plans, space))
        for row in self._tuner.study.measurements():
            if row.outcome is Fate.FAILED and row.options == ground.options:
                self.lab.warn(f"micro-batch {row.micro_batch} raised in tuning and is left out: {row.message}")
        return self._ranked(self._tuner, plans)

    def results(self) -> Tuning | None:
        """Give what was found so far; None before there was a study."""
        if self._tuner is None:
            return None
        study = self._tuner.study
        rows = study.measurements()
        reasons = self.unsupported
        return Tuning(
            objective=self.request.objective,
            study=study.name,
            storage=self._where,
            seconds=self._tuner.seconds,
            allowed=self._allowed(),
            unsupported={name: reasons[name] for name in self._asked() if name in reasons},
            best=self._tuner.incumbent.number,
            largest=next((row.trial for row in rows if _is(row, self._largest)), None),
            trials=tuple(rows),
            duels=tuple(study.duels()),
            seconds_allowed=self.request.tune_seconds,
        )

    def _begin(self, space: Space, memory: MemoryBook) -> Tuner:
        request = self.request
        storage, self._where = open_storage(request.storage, self.folder)
        study = Study(storage, study_name(request, self.device, space), space, seed=request.seed)
        study.take_up(alone=self.resumed and request.storage is None)
        return Tuner(
            study=study,
            bench=self.lab,
            memory=memory,
            limits=Limits(trials=request.tune_trials, seconds=request.tune_seconds),
            world_size=request.world_size,
            watcher=self.watcher,
            energy=request.objective == "energy",
            worth_uneven=WORTH_UNEVEN if request.split == "auto" else 1.0,
            fresh=not self.device.repeatable,
            room_for_two=2 * self.limit_bytes <= self.device.free_bytes,
        )

    def _ranked(self, tuner: Tuner, plans: Sequence[Plan]) -> Tuned:
        """Put the plans in the order of what was measured; the time of the others is predicted from it."""
        space, ground = tuner.study.space, tuner.study.space.ground
        ran = [row for row in tuner.study.measurements() if row.outcome in (Fate.OK, Fate.PRUNED)]
        ran.sort(key=lambda row: (row.trial != tuner.incumbent.number, tuner.incumbent.value(row)))
        plain = [row for row in ran if row.options == ground.options]
        time = fit_time([row.as_sample() for row in plain])
        sizes = {row.micro_batch for row in plain}
        others = [_predicted(plan, time) for plan in plans if plan.micro_batch not in sizes]
        return Tuned(
            measured=tuple(_as_plan(row, space.plans[row.micro_batch], self.budget) for row in ran),
            others=tuple(sorted(others, key=lambda plan: -(plan.samples_per_second or 0.0))),
        )

    def _asked(self) -> tuple[str, ...]:
        return names.parse_allow(self.request.allow)

    def _allowed(self) -> tuple[str, ...]:
        return tuple(name for name in self._asked() if name not in self.unsupported)


def _is(row: Measurement, candidate: Candidate | None) -> bool:
    return candidate is not None and (row.micro_batch, row.options) == (candidate.micro_batch, candidate.knobs.options)


def study_name(request: Request, device: DeviceInfo, space: Space) -> str:
    """Give the name under which those find each other who tune the same on machines of the same kind."""
    kind = (device.kind, device.name, device.total_bytes >> 28)
    asked = (
        request.workload_digest,
        request.target_batch,
        request.world_size,
        request.memory_budget,
        request.objective,
    )
    steps = sorted(plan.accumulation_steps for plan in space.plans.values())
    choices = [steps, {name: list(values) for name, values in space.values.items()}, space.ground.options]
    text = json.dumps([kind, asked, choices], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{Path(request.workload.partition('.py:')[0]).stem}-{request.target_batch}-{digest}"


def _sizes(
    request: Request, samples: Sequence[Sample], budget: Budget, ground: Knobs, fitting: Sequence[Plan]
) -> dict[int, Plan]:
    """Give the plan of each micro-batch; where even ones are preferred, without uneven ones that are hardly larger."""
    known = Known(samples=samples, memory=fit_memory(samples), time=fit_time(samples), budget=budget)
    every = solve(request.target_batch, request.world_size, request.split, lambda size: True, known)
    # What fits may be split otherwise than what would fit without a limit: aligned less, and so smaller.
    steps = {plan.accumulation_steps for plan in fitting}
    plans = [*fitting, *(plan for plan in every if plan.accumulation_steps not in steps)]
    even = [plan.micro_batch for plan in plans if plan.even]

    def worth(plan: Plan) -> bool:
        return (
            request.split != "auto" or plan.even or not any(size <= plan.micro_batch < size * _APART for size in even)
        )

    return {plan.micro_batch: replace(plan, options=ground.options) for plan in plans if worth(plan)}


def _values(allowed: Sequence[str], ground: Knobs) -> dict[str, tuple[Any, ...]]:
    """Give the values of each knob that may be turned, with the one first that the search stood on."""
    return {
        name: (getattr(ground, name), *(value for value in values if value != getattr(ground, name)))
        for name, values in names.values(allowed).items()
    }


def _first(largest: Candidate, plans: Sequence[Plan], space: Space) -> list[Candidate]:
    """Give what is measured before anything else: the usual choice, and what the solver ranks highest."""
    ranked = [plan.micro_batch for plan in plans if plan.micro_batch in space.plans]
    sizes = dict.fromkeys([largest.micro_batch, *ranked])
    return [Candidate(micro_batch=size, knobs=space.ground) for size in sizes][:_FIRST]


def _as_plan(row: Measurement, plan: Plan, budget: Budget) -> Plan:
    peak = row.peak_bytes or 0
    return replace(
        plan,
        options=row.options,
        peak_bytes=peak,
        headroom_bytes=budget.limit_bytes - peak,
        samples_per_second=row.samples_per_second,
        measured=True,
    )


def _predicted(plan: Plan, time: TimeModel | None) -> Plan:
    if time is None:
        return plan
    return replace(plan, samples_per_second=plan.effective_batch / time.update_seconds(plan.micro_batches))

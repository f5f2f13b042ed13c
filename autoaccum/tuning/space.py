"""What there is to choose from: a micro-batch that reaches the target, and a value for each knob. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from autoaccum.plans import Plan
from autoaccum.records import Knobs


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One thing to measure."""

    micro_batch: int
    knobs: Knobs


KNOBS = tuple(Knobs.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """All candidates: every plan of the solver with every value of the knobs that may be turned."""

    plans: Mapping[int, Plan]  # by micro-batch, for every size that reaches the target
    values: Mapping[str, Sequence[Any]]  # of each knob that varies, the one that it starts from first
    ground: Knobs  # where it starts from

    @property
    def sizes(self) -> list[int]:
        """The micro-batches, ascending."""
        return sorted(self.plans)

    def candidate(self, params: Mapping[str, Any]) -> Candidate:
        """Give the candidate that Optuna's parameters stand for; a knob that does not vary stays where it is."""
        turned = {name: params[name] for name in self.values if name in params}
        return Candidate(micro_batch=params["micro_batch"], knobs=replace(self.ground, **turned))

    def params(self, candidate: Candidate) -> dict[str, Any]:
        """Give Optuna's parameters for a candidate: its size, and the knobs that vary."""
        return {"micro_batch": candidate.micro_batch, **{name: getattr(candidate.knobs, name) for name in self.values}}

    def all_knobs(self) -> Iterator[Knobs]:
        """Give every setting of the knobs."""
        for chosen in product(*self.values.values()):
            yield replace(self.ground, **dict(zip(self.values, chosen, strict=True)))

    def simplicity(self, candidate: Candidate) -> tuple[int, bool, int]:
        """Give a key by which the simpler candidate sorts first: fewer knobs, equal sizes, fewer steps."""
        turned = sum(getattr(candidate.knobs, name) != getattr(self.ground, name) for name in KNOBS)
        plan = self.plans[candidate.micro_batch]
        return turned, not plan.even, plan.accumulation_steps

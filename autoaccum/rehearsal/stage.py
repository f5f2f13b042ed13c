"""A virtual GPU of one generation of cards, with more memory than any of them: each size is run once on it.

Which card it is hardly matters to PyTorch's allocator; its generation does, by the kernels that it can run and the
workspaces that they want.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from autoaccum.anatomy.record import Anatomy
from autoaccum.anatomy.traits import Traits
from autoaccum.errors import WorkloadError
from autoaccum.isolate import WorkerSpec
from autoaccum.lab import WorkerLab
from autoaccum.pipes import Echo
from autoaccum.records import PLAIN, Knobs, ModelInfo, Outcome, Sample, Trial
from autoaccum.rehearsal.cards import Card
from autoaccum.watching import Silent, Watcher

_SPACE_BYTES = 1 << 40  # nothing is under pressure here: what is reserved is what the size would like to have
_UPDATES = 3  # after which no model reserves more


_OLDEST = "7.5"  # that the newest PyTorch runs on; to its allocator older ones are the same


def generation(card: Card) -> str:
    """Give what cards have in common that run the same kernels: their major capability, "7" also for older ones."""
    return str(max(7, int(card.capability.partition(".")[0])))


def lacks_kernels(environment: Mapping[str, object], capability: str) -> str | None:
    """Say that this PyTorch has no kernels for a capability; None where it has some, or does not tell.

    Code for one runs on all later ones of its major version; PTX ("compute_90") on all later ones.
    """
    told = str(environment.get("architectures") or "")
    number = round(float(capability) * 10)
    code = [int(digits) for digits in re.findall(r"sm_(\d+)", told)]
    ptx = [int(digits) for digits in re.findall(r"compute_(\d+)", told)]
    runs = any(each <= number and each // 10 == number // 10 for each in code) or any(each <= number for each in ptx)
    if runs or not code:
        return None
    return f"torch {environment.get('torch')} has no kernels for compute capability {capability}"


class Stage:
    """Runs sizes of one workload, with knobs or without, and keeps what they showed."""

    def __init__(
        self,
        workload: str,
        card: Card,
        *,
        alterations: tuple[str, ...] = (),
        seed: int = 0,
        timeout_seconds: float = 600.0,
        watcher: Watcher | None = None,
        echo: Echo | None = None,
    ) -> None:
        self.capability = max(card.capability, _OLDEST, key=float)
        self._seen: dict[tuple[int, bool, Knobs], Sample] = {}
        spec = WorkerSpec(
            device=f"virtual:{_SPACE_BYTES}B,cc={self.capability},sms={card.multiprocessors}",
            workload=workload,
            limit_bytes=_SPACE_BYTES,
            seed=seed,
            alterations=alterations,
        )
        self._lab = WorkerLab(spec, timeout_seconds=timeout_seconds, watcher=watcher or Silent(), echo=echo)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lab.__exit__(kind, error, trace)

    @property
    def model(self) -> ModelInfo | None:
        """The facts of the model, once a size ran."""
        return self._lab.model

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the trials had to say, but for what is true of every virtual GPU; and which of them this host ended."""
        said = [text for text in self._lab.warnings if not text.startswith("no throughput")]
        ended = [sample for sample in self._seen.values() if not sample.ok]
        return (*said, *(f"micro-batch {each.micro_batch} was not rehearsed: {each.message}" for each in ended))

    def samples(self, knobs: Knobs = PLAIN) -> tuple[Sample, ...]:
        """Give what was run with these knobs, in order."""
        return tuple(sample for (_, _, turned), sample in self._seen.items() if turned == knobs)

    def run(self, size: int, *, alone: bool, knobs: Knobs = PLAIN) -> Sample:
        """Give the sample of a micro-batch; `alone`: it is the whole update, and gradients do not stay."""
        key = size, alone, knobs
        if key not in self._seen:
            with _where_values_are_zero():
                sample = self._lab.run(_trial(size, alone, knobs))
            if sample.outcome not in (Outcome.OK, Outcome.OOM):
                raise WorkloadError(f"micro-batch {size} was not rehearsed: {sample.message}", details=sample.details)
            self._seen[key] = sample
        return self._seen[key]

    def runs_within(self, size: int, limit_bytes: int) -> bool:
        """Whether a micro-batch runs where PyTorch may take no more than this; what it shows is not kept."""
        overhead = self._lab.worker().ready.device.overhead_bytes
        trial = replace(_trial(size, False, PLAIN), limit_bytes=limit_bytes + overhead, recorded=False)
        sample = self._lab.time(trial).sample
        if sample.outcome not in (Outcome.OK, Outcome.OOM):
            raise WorkloadError(f"micro-batch {size} did not end as before: {sample.message}")
        return sample.ok

    def environment(self) -> dict[str, object]:
        """Say what the sizes run on."""
        return self._lab.worker().ready.environment

    def traits(self, size: int) -> Traits:
        """Say what the workload computes with, and where it reads values."""
        with _where_values_are_zero():
            return self._lab.worker().traits(size)

    def unsupported(self) -> dict[str, str]:
        """Give the knobs and changes that cannot be tried here, each with the reason."""
        return self._lab.unsupported() or {}

    def dissect(self, size: int, *, alone: bool, snapshot: Path | None = None) -> Anatomy | None:
        """Say where the memory of a micro-batch goes, and write the allocator's history; a failure is a warning."""
        return self._lab.dissect(_trial(size, alone, PLAIN), snapshot)


@contextmanager
def _where_values_are_zero() -> Iterator[None]:
    """Let an error of the user's code say where it was raised: elsewhere there may be none."""
    try:
        yield
    except WorkloadError as error:
        if "_micro_step" in error.details:  # and not in what builds a model or a batch
            error.args = (f"{error} (values are zero on a virtual GPU, where this ran)",)
        raise


def _trial(size: int, alone: bool, knobs: Knobs) -> Trial:
    steps = 1 if alone else 2
    return Trial(
        micro_batch=size,
        accumulation_steps=steps,
        updates=_UPDATES,
        phase="rehearse",
        anew=True,
        recorded=True,
        knobs=knobs,
    )

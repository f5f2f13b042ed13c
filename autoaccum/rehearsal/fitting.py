"""The plan for one card: sizes that the solver can use, run on a stage until the largest that fits is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoaccum.errors import WorkloadError
from autoaccum.plans import Plan, rank_share
from autoaccum.records import Budget, Request, Sample
from autoaccum.rehearsal.bands import Band, Forecast, forecast
from autoaccum.rehearsal.cards import Card
from autoaccum.rehearsal.choosing import largest_that_fits
from autoaccum.rehearsal.constants import Constant, constant_for
from autoaccum.rehearsal.record import Row
from autoaccum.rehearsal.stage import Stage, lacks_kernels
from autoaccum.rehearsal.variants import AS_IT_IS, Variant
from autoaccum.solve import Known, candidates, solve
from autoaccum.units import format_bytes, parse_budget

_FIRST = 2  # size 1 is special: BatchNorm refuses it
_NEVER = 1 << 62  # the need of what could not be run at all


def budget_on(card: Card, asked: str | None) -> Budget:
    """Give what a plan may take on a card: as asked for, else all of it; margins are the predictions' own."""
    limit = card.total_bytes if asked is None else parse_budget(asked, card.total_bytes)
    return Budget(limit_bytes=min(limit, card.total_bytes), reserve_bytes=0, source="free" if asked is None else "user")


class Fitting:
    """One card under one question."""

    def __init__(
        self,
        card: Card,
        stage: Stage,
        request: Request,
        band: Band,
        variant: Variant = AS_IT_IS,
        constant: Constant | None = None,
    ) -> None:
        self._card = card
        self._stage = stage
        self._request = request
        self._band = band
        self._variant = variant
        self._rank_batch = rank_share(request.target_batch, request.world_size)
        self._sizes = candidates(self._rank_batch, request.split)
        self._first = max(size for size in self._sizes if size <= max(_FIRST, self._sizes[0]))
        self._budget = budget_on(card, request.memory_budget)
        self._constant = constant or constant_for(card.name, stage.environment())

    def largest(self) -> int | None:
        """Give the largest size of a plan that fits, with the margin of its kind; None where none does."""
        seen = {s.micro_batch: self._needs(s) for s in self._stage.samples(self._variant.knobs) if self._counts(s)}

        def needs(size: int) -> int:
            try:
                return seen.setdefault(size, self._needs(self._run(size)))
            except WorkloadError:
                if size > 1 or not seen:
                    raise
                # BatchNorm refuses a single sample; where two do not fit, that is no news.
                return seen.setdefault(size, _NEVER)

        whole, limit = self._rank_batch, self._budget.limit_bytes
        found = largest_that_fits(self._sizes, needs, limit, seen)
        if whole not in seen and self._may_fit_alone(seen) and needs(whole) <= limit:
            return whole
        return found

    def _may_fit_alone(self, seen: Mapping[int, int]) -> bool:
        """Whether the whole batch is worth a run: alone, gradients do not stay, and smaller sizes may not fit."""
        known = [point for point in sorted(seen.items()) if point[1] < _NEVER][-2:]
        if len(known) < 2 or self._stage.model is None:
            return False
        (x0, y0), (x1, y1) = known
        expected = y1 + (y1 - y0) / (x1 - x0) * (self._rank_batch - x1) - self._stage.model.gradient_bytes
        return expected <= self._budget.limit_bytes

    def obstacle(self) -> str | None:
        """Say why there can be no plan: PyTorch does not run on the card, or the change cannot be made, or is none."""
        missing = lacks_kernels(self._stage.environment(), self._card.capability)
        if missing is not None or not self._variant.parts:
            return missing
        reason = self._unsupported()
        if reason is not None:
            return reason
        try:
            self._run(self._first)
        except WorkloadError as error:
            return str(error)
        return self._unsupported()  # some only show that they change nothing once they run

    def _unsupported(self) -> str | None:
        reasons = self._stage.unsupported()
        return next((reasons[name] for name in self._variant.parts if name in reasons), None)

    def row(self) -> Row:
        """Give the card's row: the best plan that fits, or why there is none."""
        obstacle = self.obstacle()
        if obstacle is not None:
            return self._empty(obstacle)
        try:
            largest = self.largest()
        except WorkloadError as error:
            if not self._variant.parts:
                raise
            return self._empty(str(error))  # a change that raises costs its own row alone
        if largest is None:
            return self._empty(self._too_large())
        plan = self._plan(largest)
        expected = self.forecast(plan.micro_batch)
        row = replace(
            self._empty(),
            plan=plan,
            peak_low_bytes=expected.low_bytes,
            peak_high_bytes=expected.high_bytes,
            needed_bytes=expected.safe_bytes,
        )
        larger = next((size for size in self._sizes if size > largest), None)
        ran = None if larger is None else self._run(larger)
        if ran is None or not ran.ok:
            return row
        beyond = self._forecast(ran)
        return replace(
            row, next_micro_batch=larger, next_peak_bytes=beyond.peak_bytes, next_needed_bytes=beyond.safe_bytes
        )

    def _empty(self, message: str = "") -> Row:
        return Row(
            gpu=self._card.key,
            name=self._card.name,
            total_bytes=self._card.total_bytes,
            source=self._card.source,
            limit_bytes=self._budget.limit_bytes,
            what_if=self._variant.name,
            constant=self._constant,
            message=message,
        )

    def forecast(self, size: int) -> Forecast:
        """Give what a size will hold on the card."""
        return self._forecast(self._run(size))

    def _plan(self, largest: int) -> Plan:
        """Give the plan that the solver ranks first, among sizes up to the largest that fits."""
        request, whole = self._request, self._rank_batch

        def fits(size: int) -> bool:
            # Where only the whole batch fits, the sizes below it do not.
            return size == largest if largest == whole else size <= largest

        known = Known(samples=(), memory=None, time=None, budget=self._budget)
        best = solve(request.target_batch, request.world_size, request.split, fits, known)[0]
        peak = self.forecast(best.micro_batch).peak_bytes
        return replace(
            best,
            peak_bytes=peak,
            headroom_bytes=self._budget.limit_bytes - peak,
            options=self._variant.knobs.options,
        )

    def _run(self, size: int) -> Sample:
        return self._stage.run(size, alone=size == self._rank_batch, knobs=self._variant.knobs)

    def _counts(self, sample: Sample) -> bool:
        return (sample.accumulation_steps == 1) == (sample.micro_batch == self._rank_batch)

    def _forecast(self, sample: Sample) -> Forecast:
        return forecast(sample.peak_reserved_bytes or 0, self._band, self._constant)

    def _needs(self, sample: Sample) -> int:
        """Give what must be there for a size: its peak, and the margin."""
        return self._forecast(sample).safe_bytes if sample.ok else _NEVER

    def _too_large(self) -> str:
        smallest = min(self._stage.samples(self._variant.knobs), key=lambda sample: sample.micro_batch)
        if not smallest.ok:
            return f"micro-batch {smallest.micro_batch} could not be rehearsed: {smallest.message}"
        needs, limit = format_bytes(self._needs(smallest)), format_bytes(self._budget.limit_bytes)
        size = smallest.micro_batch
        return f"nothing fits: micro-batch {size} wants {needs}, its margin included, and there is {limit}"

"""The stages of a rehearsal: one for each generation of cards, and for each change that needs a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from autoaccum.pipes import Echo
from autoaccum.records import Request
from autoaccum.rehearsal.bands import Band
from autoaccum.rehearsal.cards import Card
from autoaccum.rehearsal.fitting import Fitting
from autoaccum.rehearsal.record import Scene
from autoaccum.rehearsal.stage import Stage, generation
from autoaccum.rehearsal.variants import AS_IT_IS, Variant
from autoaccum.watching import Watcher


class Company:
    """The stages of a rehearsal, each opened when it is first needed."""

    def __init__(self, request: Request, watcher: Watcher | None = None, echo: Echo | None = None) -> None:
        self._request = request
        self._watcher = watcher
        self._echo = echo
        self._stages: dict[tuple[str, tuple[str, ...]], Stage] = {}
        self._pools = ExitStack()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._pools:
            self._open.__exit__(kind, error, trace)

    def assemble(self, cards: Sequence[Card]) -> None:
        """Start the stages of all these cards at once: each imports torch, which takes its time."""
        stages = {id(stage): stage for stage in map(self.stage, cards)}
        # The pool outlives them: a worker ends with the thread that started it.
        pool = ThreadPoolExecutor(len(stages))
        self._pools.callback(pool.shutdown)
        for started in [pool.submit(stage.environment) for stage in stages.values()]:
            started.result()

    def stage(self, card: Card, alterations: tuple[str, ...] = ()) -> Stage:
        """Give the stage for cards of this generation."""
        key = generation(card), alterations
        if key not in self._stages:
            stage = Stage(
                self._request.workload,
                card,
                alterations=alterations,
                seed=self._request.seed,
                timeout_seconds=self._request.timeout,
                watcher=self._watcher,
                echo=self._echo,
            )
            self._stages[key] = self._open.enter_context(stage)
        return self._stages[key]

    def fitting(self, card: Card, band: Band, variant: Variant = AS_IT_IS) -> Fitting:
        """Give a card with the stage that it is rehearsed on."""
        return Fitting(card, self.stage(card, variant.alterations), self._request, band, variant)

    def scenes(self, changes: Sequence[Variant]) -> Iterator[Scene]:
        """Give all that was run."""
        for (_, alterations), stage in self._stages.items():
            for variant in (AS_IT_IS, *changes):
                samples = stage.samples(variant.knobs) if variant.alterations == alterations else ()
                if samples:
                    yield Scene(capability=stage.capability, what_if=variant.name, samples=samples)

    def warnings(self) -> list[str]:
        """Give what the stages had to say, each thing once."""
        return list(dict.fromkeys(text for stage in self._stages.values() for text in stage.warnings))

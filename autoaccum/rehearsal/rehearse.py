"""The line of a rehearsal: GPUs and a workload to a plan for each of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from autoaccum.advice import shared_by_ranks
from autoaccum.anatomy.traits import HostRead, Traits
from autoaccum.checks import check
from autoaccum.errors import UsageError
from autoaccum.outputs import check_file
from autoaccum.pipes import Echo
from autoaccum.plans import rank_share
from autoaccum.records import Request
from autoaccum.rehearsal import files, variants
from autoaccum.rehearsal.bands import Band, band_for
from autoaccum.rehearsal.cards import Card
from autoaccum.rehearsal.cards import parse as parse_cards
from autoaccum.rehearsal.company import Company
from autoaccum.rehearsal.helping import what_helps
from autoaccum.rehearsal.record import Rehearsal, Row
from autoaccum.rehearsal.variants import Variant
from autoaccum.report.files import remove
from autoaccum.watching import Watcher

_MOST_PLACES = 4  # of a warning
_VALUES = ("item", "cpu", "equal", "is_nonzero")  # what is read as it is; other reads make shapes


def rehearse(
    workload: str | os.PathLike[str],
    *,
    target_batch: int,
    gpu: str | Sequence[str] = "all",
    memory_budget: str | int | None = None,
    world_size: int = 1,
    split: str = "auto",
    what_if: str | Sequence[str] | None = None,
    snapshot: str | os.PathLike[str] | None = None,
    seed: int = 0,
    timeout: float = 600.0,
    out: str | os.PathLike[str] | None = None,
) -> Rehearsal:
    """Give the plan of "FILE.py[:NAME]" for each GPU, on a machine that need not have any; with `out`, write it there.

    >>> answer = autoaccum.rehearse("model.py", target_batch=512, gpu="a100-40gb,l4,24GiB", what_if="checkpoint,bf16")
    >>> answer.plans["l4"].micro_batch
    32
    """
    if not isinstance(gpu, str | Sequence):
        raise UsageError(f'gpu must be names such as "a100-40gb,l4", or a list of them, not {gpu!r}')
    request = Request(
        workload=os.fspath(workload),
        target_batch=target_batch,
        memory_budget=f"{memory_budget}B" if isinstance(memory_budget, int) else memory_budget,
        world_size=world_size,
        split=split,
        seed=seed,
        timeout=timeout,
    )
    return run(
        request,
        gpu=gpu if isinstance(gpu, str) else ",".join(gpu),
        what_if=what_if if what_if is None or isinstance(what_if, str) else ",".join(what_if) or None,
        snapshot=None if snapshot is None else Path(snapshot),
        out=None if out is None else Path(out),
    )


def run(
    request: Request,
    *,
    gpu: str,
    what_if: str | None = None,
    snapshot: Path | None = None,
    out: Path | None = None,
    watcher: Watcher | None = None,
    echo: Echo | None = None,
) -> Rehearsal:
    """Answer `request` for each GPU; a row without a plan says why."""
    cards, changes, request = parse_cards(gpu), variants.parse(what_if), check(request)
    if snapshot is not None:
        check_file("--snapshot", snapshot)
    folder = None if out is None else files.new_folder(out, request.workload)
    began = time.monotonic()
    try:
        with Company(request, watcher, echo) as company:
            answer = _answer(request, cards, changes, snapshot, company)
    except BaseException:
        if folder is not None:
            remove(folder)
        raise
    answer = replace(answer, seconds=time.monotonic() - began, folder=folder)
    if folder is not None:
        files.write(answer, folder)
    return answer


def _answer(
    request: Request, cards: Sequence[Card], changes: Sequence[Variant], snapshot: Path | None, company: Company
) -> Rehearsal:
    rank_batch = rank_share(request.target_batch, request.world_size)
    company.assemble(cards)
    first = company.stage(cards[0])
    traits = first.traits(min(2, rank_batch))
    band = band_for(traits)
    rows = [row for card in cards for row in _rows(card, band, changes, company)]
    shown = next((row for row in rows if row.plan is not None and not row.what_if), None)
    anatomy = None
    if shown is not None and shown.plan is not None:
        card = next(each for each in cards if each.key == shown.gpu)
        size = shown.plan.micro_batch
        anatomy = company.stage(card).dissect(size, alone=size == rank_batch, snapshot=snapshot)
    unwritten = (f"{snapshot} is not written: there is no plan to show",) if snapshot and shown is None else ()
    return Rehearsal(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=request.workload,
        target_batch=request.target_batch,
        world_size=request.world_size,
        environment=first.environment(),
        model=first.model,
        traits=traits,
        band=band,
        rows=tuple(rows),
        scenes=tuple(company.scenes(changes)),
        anatomy=anatomy,
        warnings=(*_reads(traits), *shared_by_ranks(request.world_size), *company.warnings(), *unwritten),
        advice=tuple(what_helps(rows, cards, band, anatomy, company)),
    )


def _rows(card: Card, band: Band, changes: Sequence[Variant], company: Company) -> Iterator[Row]:
    """Give the row of a card, and one for each change, unless there is no use in any."""
    plain = company.fitting(card, band)
    yield plain.row()
    if plain.obstacle() is None:
        for variant in changes:
            yield company.fitting(card, band, variant).row()


def _reads(traits: Traits) -> Iterator[str]:
    """Warn of what depends on values, which a virtual GPU does not have."""
    values = [read for read in traits.host_reads if read.operation in _VALUES]
    selections = [read for read in traits.host_reads if read.operation not in _VALUES]
    if values:
        yield (
            f"values are zero on a virtual GPU, and the program reads some, at {_named(values)}: "
            f"where it takes another path for them, its memory may differ"
        )
    if selections:
        yield (
            f"what is selected by values is empty on a virtual GPU, at {_named(selections)}: "
            f"the peak lacks all that is computed from it, and the plan may be far too large"
        )


def _named(reads: Sequence[HostRead]) -> str:
    named = ", ".join(f"{read.place} ({read.operation})" for read in reads[:_MOST_PLACES])
    return f"{named} and {len(reads) - _MOST_PLACES} places more" if len(reads) > _MOST_PLACES else named

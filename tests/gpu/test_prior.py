"""The search from a prior, on virtual GPUs that are the machine's own: what it saves, and what it leaves behind."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoaccum import pipeline, virtual
from autoaccum.checks import check
from autoaccum.records import DeviceInfo, Outcome, Prior, Request, Sample
from autoaccum.rehearsal.constants import constant_for
from autoaccum.report import files
from autoaccum.report.record import Report, Status
from autoaccum.units import GIB, MIB
from autoaccum.virtual import VirtualGpu

from .conftest import WIDE

pytestmark = pytest.mark.gpu

GPU = VirtualGpu(
    total_bytes=2 * GIB, context_bytes=320 * MIB, name="NVIDIA Imagined", capability="8.9", multiprocessors=58
)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Request]:
    """A request for "cuda", which is the virtual GPU."""
    path = tmp_path_factory.mktemp("workload") / "model.py"
    path.write_text(textwrap.dedent(WIDE))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in virtual.environment(GPU).items():
            patch.setenv(name, value)
        yield check(Request(workload=os.fspath(path), target_batch=128, device="cuda", split="even"))


@pytest.fixture(scope="module")
def plain(asked: Request) -> Report:
    """The report of a probe that starts from small sizes."""
    report, _ = pipeline.run(replace(asked, rehearse=False), out=None)
    assert report.plan is not None
    return report


def searched(samples: Sequence[Sample]) -> list[tuple[int, str]]:
    return [(s.micro_batch, s.outcome) for s in samples if s.phase != "confirm"]


def test_a_probe_starts_from_what_was_rehearsed_and_finds_the_same(asked: Request, plain: Report) -> None:
    devices = []
    largest = plain.bracket.largest_ok or 0

    def rehearse(request: Request, device: DeviceInfo, budget: Any) -> Prior:
        devices.append(device)
        return Prior(start=largest, words=f"micro-batch {largest} predicted to fit")

    report, _ = pipeline.run(asked, out=None, rehearse=rehearse)

    assert report.plan is not None
    assert plain.plan is not None
    assert report.plan.micro_batches == plain.plan.micro_batches
    assert searched(report.samples)[0] == (largest, "ok")
    assert len(report.samples) <= 3
    assert report.memory_model is not None
    words = f"rehearsed on a virtual NVIDIA Imagined: micro-batch {largest} predicted to fit"
    assert report.prior == Prior(start=largest, words=words)
    assert [(each.name, each.capability, each.multiprocessors) for each in devices] == [("NVIDIA Imagined", "8.9", 58)]


def test_a_probe_rehearses_by_itself_and_needs_fewer_trials(asked: Request, plain: Report) -> None:
    report, _ = pipeline.run(asked, out=None)

    assert report.prior is not None
    assert report.prior.start is not None
    assert report.bracket.largest_ok == plain.bracket.largest_ok
    assert len(report.samples) < len(plain.samples)


def test_a_probe_remembers_what_the_process_held_besides_torchs_memory(plain: Report) -> None:
    found = constant_for("NVIDIA Imagined", plain.environment)

    assert found.typical_bytes == 320 * MIB
    assert found.source.startswith("measured on this machine ")
    assert plain.prior is None


def test_a_run_that_was_cut_off_goes_on_from_its_prior(asked: Request, plain: Report, tmp_path: Path) -> None:
    too_large = Sample(trial=1, phase="grow", micro_batch=64, accumulation_steps=2, outcome=Outcome.OOM)
    prior = Prior(start=64, words="rehearsed")
    cut = replace(plain, status=Status.RUNNING, samples=(too_large,), plan=None, plans=(), prior=prior, request=asked)
    files.write_json(cut, tmp_path)

    resumed, _ = pipeline.resume(tmp_path)

    assert searched(resumed.samples)[:2] == [(64, "oom"), (2, "ok")]
    assert resumed.prior == prior
    assert resumed.plan is not None
    assert plain.plan is not None
    assert resumed.plan.micro_batches == plain.plan.micro_batches

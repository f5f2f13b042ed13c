from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pandas as pd

from autoaccum.display import plan_line
from autoaccum.plans import Plan
from autoaccum.records import Bracket, Budget, DeviceInfo, MemoryModel, ModelInfo, Outcome, Sample
from autoaccum.report import files
from autoaccum.report.record import Report, Status
from autoaccum.report.tables import SAMPLE_COLUMNS, plans_frame, samples_frame
from autoaccum.units import GIB

PLAN = Plan(
    micro_batch=64,
    accumulation_steps=8,
    micro_batches=(64,) * 8,
    world_size=1,
    effective_batch=512,
    peak_bytes=int(19.6 * GIB),
    headroom_bytes=int(0.7 * GIB),
    samples_per_second=101.2,
    measured=True,
)
RAN = Sample(
    trial=1,
    phase="grow",
    micro_batch=64,
    accumulation_steps=2,
    outcome=Outcome.OK,
    peak_allocated_bytes=2**53 + 1,  # beyond what a float holds
    peak_reserved_bytes=2,
    device_used_bytes=3,
    step_seconds=0.1,
    samples_per_second=1 / 3,
    alloc_retries=0,
    optimizer_seconds=0.01,
)
DIED = Sample(
    trial=2,
    phase="grow",
    micro_batch=128,
    accumulation_steps=2,
    outcome=Outcome.KILLED,
    message='a "quoted", line\nand more',
)
REPORT = Report(
    created_at="2026-01-02T03:04:05+00:00",
    status=Status.PLANNED,
    environment={"torch": "2.13.0", "cuda": None},
    device=DeviceInfo(kind="cpu", name="x", uuid=None, total_bytes=9, free_bytes=8),
    budget=Budget(limit_bytes=int(20.3 * GIB), reserve_bytes=0, source="user"),
    workload="model.py",
    model=ModelInfo(name="GPT", parameters=1, parameter_bytes=4),
    target_batch=512,
    world_size=1,
    samples=(RAN, DIED),
    bracket=Bracket(largest_ok=64, smallest_failed=128),
    memory_model=MemoryModel(fixed_bytes=1, bytes_per_sample=2, overhead_bytes=3, floor_bytes=4, worst_miss_bytes=5),
    plan=PLAN,
    plans=(PLAN, replace(PLAN, accumulation_steps=16, micro_batch=32, micro_batches=(32,) * 16, peak_bytes=None)),
    warnings=("careful",),
)


def test_a_report_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    files.write(REPORT, tmp_path)

    assert files.read(tmp_path) == REPORT


def test_a_report_of_a_newer_version_can_still_be_read() -> None:
    data = json.loads(json.dumps(REPORT.to_dict()))
    data["new_in_version_9"] = 1
    data["samples"][0]["also_new"] = 2

    assert Report.from_dict(data) == REPORT


def test_samples_survive_the_csv_file_exactly(tmp_path: Path) -> None:
    files.write(REPORT, tmp_path)

    table = pd.read_csv(
        tmp_path / "samples.csv",
        dtype=SAMPLE_COLUMNS,
        keep_default_na=False,
        na_values={name: [""] for name, kind in SAMPLE_COLUMNS.items() if kind != "string"},
    )

    pd.testing.assert_frame_equal(table, samples_frame(REPORT))
    assert table["peak_allocated_bytes"][0] == 2**53 + 1
    assert pd.isna(table["peak_allocated_bytes"][1])
    assert table["message"][1] == DIED.message


def test_samples_begin_with_the_columns_of_the_contract() -> None:
    assert list(samples_frame(REPORT))[:12] == [
        "trial", "phase", "micro_batch", "accumulation_steps", "outcome", "peak_allocated_bytes", "peak_reserved_bytes",
        "device_used_bytes", "step_seconds", "samples_per_second", "alloc_retries", "message",
    ]  # fmt: skip


def test_plans_are_numbered_from_the_best() -> None:
    table = plans_frame(REPORT)

    assert list(table["rank"]) == [1, 2]
    assert json.loads(table["micro_batches"][1]) == [32] * 16


def test_a_run_without_samples_gives_empty_tables(tmp_path: Path) -> None:
    files.write(replace(REPORT, samples=(), plans=(), plan=None), tmp_path)

    assert list(pd.read_csv(tmp_path / "samples.csv")) == list(SAMPLE_COLUMNS)


def test_run_folders_are_numbered_by_day(tmp_path: Path) -> None:
    day = date(2026, 11, 16)
    names = [files.new_folder(tmp_path, spec, day).name for spec in ("a/model.py", "model.py:NAME", "b c<d>.py")]

    assert names == ["model-2026-11-16-001", "model-2026-11-16-002", "b-c-d-2026-11-16-001"]


def test_the_plan_is_one_line() -> None:
    assert REPORT.budget is not None
    assert plan_line(PLAN, REPORT.budget) == (
        "plan  micro-batch 64 x 8 accumulation steps = 512    peak 19.6 GiB of 20.3 GiB    101 samples/s"
    )


def test_an_uneven_plan_says_its_sizes() -> None:
    assert REPORT.budget is not None
    plan = replace(PLAN, micro_batch=52, accumulation_steps=10, micro_batches=(52,) * 2 + (51,) * 8, world_size=2)

    assert plan_line(plan, REPORT.budget).startswith(
        "plan  micro-batches 2 x 52 + 8 x 51 in 10 accumulation steps x 2 ranks = 512"
    )

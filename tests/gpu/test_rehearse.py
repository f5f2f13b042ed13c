"""autoaccum rehearse, as people use it: plans for GPUs that are not here, from a child on a virtual one."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

import autoaccum
from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.records import Trial
from autoaccum.rehearsal.constants import DEFAULT
from autoaccum.rehearsal.record import Rehearsal
from tests.conftest import Cli, Ran, WriteWorkload
from tests.gpu.conftest import WORKLOADS

pytestmark = pytest.mark.gpu

GPT = WORKLOADS / "gpt.py"


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A small GPT on cards of two generations, with changes that save memory."""
    out = tmp_path_factory.mktemp("results")
    return autoaccum.rehearse(
        GPT,
        target_batch=512,
        gpu="t4,4GiB,8GiB",
        what_if="checkpoint,bf16,sgd",
        out=out,
        snapshot=out / "memory.pickle",
    )


def check(ran: Ran, code: int, words: str) -> None:
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    assert words in ran.error, ran.error


def test_each_card_has_a_plan_that_reaches_the_target_exactly(answer: Rehearsal) -> None:
    assert list(answer.plans) == ["t4", "4GiB", "8GiB"]
    for plan in answer.plans.values():
        assert plan is not None
        assert sum(plan.micro_batches) == plan.effective_batch == 512


def test_a_larger_card_has_larger_micro_batches(answer: Rehearsal) -> None:
    sizes = [plan.micro_batch if plan else 0 for plan in answer.plans.values()]

    assert sizes[1] < sizes[2] < sizes[0]


def test_the_plan_runs_in_a_fresh_process_with_the_peak_that_was_predicted(answer: Rehearsal) -> None:
    row = next(row for row in answer.rows if row.gpu == "8GiB" and not row.what_if)
    assert row.plan is not None
    device = f"virtual:8GiB,context={DEFAULT.typical_bytes}B"
    trial = Trial(micro_batch=row.plan.micro_batch, updates=3)

    with Worker(WorkerSpec(device=device, workload=str(GPT), limit_bytes=8 << 30), timeout_seconds=60) as worker:
        sample = worker.run(1, trial, smaller_ran=False).sample

    assert sample.ok
    assert sample.device_used_bytes == row.plan.peak_bytes


def test_the_next_size_would_need_more_than_there_is(answer: Rehearsal) -> None:
    for row in answer.rows:
        if row.next_needed_bytes is not None:
            assert row.next_needed_bytes > row.limit_bytes


def test_changes_are_rehearsed_and_save_what_they_save(answer: Rehearsal) -> None:
    steps = {row.what_if: row.plan.accumulation_steps for row in answer.rows if row.gpu == "4GiB" and row.plan}
    scenes = {scene.what_if: scene for scene in answer.scenes if scene.capability == "8.0"}
    eight = {name: next(s for s in scene.samples if s.micro_batch == 8) for name, scene in scenes.items()}

    assert set(steps) == set(eight) == {"", "checkpoint", "bf16", "sgd"}
    assert steps["checkpoint"] <= steps[""]
    assert (eight["checkpoint"].peak_allocated_bytes or 0) < (eight[""].peak_allocated_bytes or 0)
    assert answer.model is not None
    saved = (eight[""].peak_allocated_bytes or 0) - (eight["sgd"].peak_allocated_bytes or 0)
    assert saved == pytest.approx(answer.model.optimizer_state_bytes, rel=0.1)


def test_a_change_that_a_card_cannot_make_is_told_and_not_rehearsed(answer: Rehearsal) -> None:
    row = next(row for row in answer.rows if row.gpu == "t4" and row.what_if == "bf16")

    assert row.plan is None
    assert "8.0 or newer" in row.message


def test_the_parts_of_memory_add_up_to_what_was_predicted(answer: Rehearsal) -> None:
    first = answer.rows[0]

    assert answer.anatomy is not None
    assert first.plan is not None
    assert first.plan.peak_bytes == answer.anatomy.reserved_bytes + DEFAULT.typical_bytes


def test_the_snapshot_is_the_allocators_history(answer: Rehearsal) -> None:
    assert answer.folder is not None
    with (answer.folder.parent / "memory.pickle").open("rb") as file:
        history = pickle.load(file)

    assert {"segments", "device_traces"} <= set(history)
    assert any(event["action"] == "alloc" for event in history["device_traces"][0])


def test_the_files_hold_what_was_answered(answer: Rehearsal) -> None:
    assert answer.folder is not None
    saved = json.loads((answer.folder / "rehearsal.json").read_text())
    table = pd.read_csv(answer.folder / "rehearsal.csv")

    assert Rehearsal.from_dict(saved) == answer
    assert list(table.gpu) == [row.gpu for row in answer.rows]
    assert list(table.peak_bytes.dropna()) == [row.plan.peak_bytes for row in answer.rows if row.plan]


def test_a_program_that_reads_values_is_warned_of_with_its_line(cli: Cli, workload: WriteWorkload) -> None:
    workload("""
        def loss(model, batch):
            inputs, targets = batch
            value = nn.functional.cross_entropy(model(inputs), targets)
            if value.item() > 10:
                raise ValueError("diverged")
            return value
    """)

    ran = cli("rehearse", "model.py", "--target-batch", "8", "--gpu", "8GiB", "--json")

    assert ran.code == 0, ran.err
    assert ran.report["rows"][0]["plan"]["accumulation_steps"] == 1
    assert any("reads some, at model.py:14 in loss (item)" in text for text in ran.report["warnings"])
    assert "values are zero on a virtual GPU" in ran.err


def test_a_program_that_stops_at_zeros_is_told_why(cli: Cli, workload: WriteWorkload) -> None:
    workload("""
        def loss(model, batch):
            value = nn.functional.cross_entropy(model(batch[0]), batch[1])
            assert value.item() > 0, "the loss is not positive"
            return value
    """)

    ran = cli("rehearse", "model.py", "--target-batch", "8", "--gpu", "8GiB")

    check(ran, 4, "model.py:13 in loss: AssertionError: the loss is not positive")
    assert "values are zero on a virtual GPU" in ran.error


def test_where_nothing_fits_the_rows_say_what_is_needed(cli: Cli, workload: WriteWorkload) -> None:
    workload("""
        def build_model():
            return nn.Linear(64, 1 << 26)
    """)

    ran = cli("rehearse", "model.py", "--target-batch", "8", "--gpu", "8GiB,t4")

    check(ran, 3, "there is a plan for none of these GPUs")
    assert ran.out.count("nothing fits: micro-batch 1 wants") == 2


def test_without_a_compiler_there_is_no_virtual_gpu(cli: Cli, workload: WriteWorkload, tmp_path: Path) -> None:
    workload()
    empty = tmp_path / "empty"
    empty.mkdir()

    ran = cli(
        "rehearse", "model.py", "--target-batch", "8", "--gpu", "l4",
        AUTOACCUM_CACHE=str(tmp_path / "cache"), PATH=str(empty), CC="",
    )  # fmt: skip

    check(ran, 5, "there is none: install gcc or clang")


def test_an_interrupted_rehearsal_leaves_nothing_behind(cli: Cli, workload: WriteWorkload) -> None:
    workload("""
        def make_batch(size):
            open("begun", "w").close()
            time.sleep(60)
    """)
    running = subprocess.Popen(
        cli.command("rehearse", "model.py", "--target-batch", "8", "--gpu", "l4"),
        cwd=cli.folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 100
    while not (cli.folder / "begun").exists() and time.monotonic() < until:
        time.sleep(0.05)

    os.kill(running.pid, signal.SIGINT)

    assert "interrupted" in running.communicate(timeout=30)[1]
    assert running.returncode == 130
    assert not list((cli.folder / "results").iterdir())


def test_a_change_that_raises_costs_its_own_row_alone(cli: Cli, workload: WriteWorkload) -> None:
    workload("""
        def loss(model, batch):
            outputs = torch.sigmoid(model(batch[0]))
            return nn.functional.binary_cross_entropy(outputs, torch.zeros_like(outputs))
    """)

    ran = cli("rehearse", "model.py", "--target-batch", "8", "--gpu", "8GiB", "--what-if", "bf16,sgd", "--json")

    assert ran.code == 0, ran.err
    plain, bf16, sgd = ran.report["rows"]
    assert plain["plan"] is not None
    assert bf16["plan"] is None
    assert "unsafe to autocast" in bf16["message"]
    assert sgd["plan"] is not None


def test_what_cannot_be_taken_apart_has_its_plans_all_the_same(cli: Cli, workload: WriteWorkload) -> None:
    workload()

    ran = cli(
        "rehearse", "model.py", "--target-batch", "8", "--gpu", "8GiB", "--json",
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )  # fmt: skip

    assert ran.code == 0, ran.err
    assert ran.report["rows"][0]["plan"] is not None
    assert ran.report["anatomy"] is None
    assert any("where the memory goes is not known" in text for text in ran.report["warnings"])

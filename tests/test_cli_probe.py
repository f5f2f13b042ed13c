"""The main job, through the command line, on the CPU under a budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import autoaccum
from autoaccum.isolate import Worker
from autoaccum.records import Outcome, Trial
from autoaccum.report.files import NAMES, read
from autoaccum.units import MIB
from tests.conftest import Cli, WriteWorkload

EXAMPLES = Path(__file__).parent.parent / "examples"

# About 4 MiB for each sample, so that one sample more is more than the meter's noise.
WIDE_MLP = """
    import torch
    from torch import nn

    def build_model():
        return nn.Sequential(nn.Linear(8, 262144), nn.GELU(), nn.Tanh(), nn.Linear(262144, 8))

    def make_batch(size):
        return torch.randn(size, 8), torch.randint(8, (size,))

    def build_optimizer(model):
        return torch.optim.SGD(model.parameters(), 0.1)
"""
# The logits of 128 tokens over 8192 words: 4 MiB for each sample and copy.
SMALL_GPT = """
    import sys
    sys.path.insert(0, {examples!r})
    import gpt
    gpt.VOCABULARY, gpt.WIDTH, gpt.HEADS, gpt.LAYERS = 8192, 64, 2, 2
    from gpt import build_model, make_batch, loss, build_optimizer
"""
# Few channels over many pixels, through oneDNN: 512 KiB for each sample and layer.
LARGE_IMAGES = """
    import torch
    from torch import nn

    def build_model():
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
        )

    def make_batch(size):
        assert torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
        return torch.randn(size, 3, 128, 128), torch.randint(10, (size,))
"""


@pytest.fixture
def models(workload: WriteWorkload) -> dict[str, tuple[Path, str, str]]:
    """Three models, each with a target and a budget that the whole target does not fit."""
    return {
        "mlp": (workload(base=WIDE_MLP, name="mlp.py"), "96", "420MiB"),
        "gpt": (workload(base=SMALL_GPT.format(examples=str(EXAMPLES)), name="small_gpt.py"), "60", "520MiB"),
        "cnn": (workload(base=LARGE_IMAGES, name="images.py"), "100", "400MiB"),
    }


@pytest.mark.parametrize("name", ["mlp", "gpt", "cnn"])
def test_the_plan_is_exact_was_run_and_the_next_candidate_does_not_fit(
    name: str, models: dict[str, tuple[Path, str, str]], cli: Cli, start: Callable[..., Worker]
) -> None:
    path, target, budget = models[name]

    asked = ("--target-batch", target, "--memory-budget", budget, "--device", "cpu", "--tune-trials", "0")
    report = cli("probe", path, *asked, "--json").report

    plan = report["plan"]
    assert plan["effective_batch"] == sum(plan["micro_batches"]) == int(target)
    assert plan["accumulation_steps"] > 1
    confirmed = [s for s in report["samples"] if s["phase"] == "confirm" and s["outcome"] == "ok"][-1]
    assert (confirmed["micro_batch"], confirmed["accumulation_steps"]) == (
        plan["micro_batch"],
        plan["accumulation_steps"],
    )
    assert plan["peak_bytes"] == confirmed["device_used_bytes"] <= report["budget"]["limit_bytes"]
    proof = report["certificate"]
    assert any(s["outcome"] == "ok" and s["micro_batch"] == proof["micro_batch"] for s in report["samples"])
    too_large = proof["next_micro_batch"]
    assert too_large is not None
    fresh = start(path, limit_bytes=report["budget"]["limit_bytes"])
    assert fresh.run(1, Trial(micro_batch=too_large), smaller_ran=True).sample.outcome is Outcome.OOM


def test_find_max_ends_with_a_size_that_runs_and_one_more_that_does_not(
    models: dict[str, tuple[Path, str, str]], cli: Cli, start: Callable[..., Worker]
) -> None:
    path, _, budget = models["mlp"]

    report = cli(
        "probe", path, "--target-batch", "8", "--memory-budget", budget, "--find-max", "--device", "cpu", "--json"
    ).report

    largest, more = report["certificate"]["micro_batch"], report["certificate"]["next_micro_batch"]
    assert more == largest + 1
    assert largest > 8
    fresh = start(path, limit_bytes=report["budget"]["limit_bytes"])
    # The meter reads whole processes: a size at the very edge may fall on either side in another one.
    assert fresh.run(1, Trial(micro_batch=largest - 1), smaller_ran=True).sample.ok
    assert fresh.run(2, Trial(micro_batch=more + 1), smaller_ran=True).sample.outcome is Outcome.OOM


def test_a_target_that_fits_needs_no_accumulation(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("probe", workload(), "--target-batch", "8", "--device", "cpu")

    assert ran.code == 0
    assert ran.out.startswith("plan  micro-batch 8 x 1 accumulation step = 8    peak ")
    assert len(ran.out.splitlines()) == 1


def test_the_run_folder_holds_the_report_and_its_tables(cli: Cli, workload: WriteWorkload, tmp_path: Path) -> None:
    ran = cli("probe", workload(), "--target-batch", "8", "--device", "cpu", "--json")

    (folder,) = (tmp_path / "results").iterdir()
    assert sorted(p.name for p in folder.iterdir()) == sorted(NAMES)
    assert json.loads((folder / "report.json").read_text()) == ran.report
    assert ran.report["anatomy"] is None  # it takes a GPU's allocator
    samples = pd.read_csv(folder / "samples.csv")
    assert list(samples["micro_batch"]) == [s["micro_batch"] for s in ran.report["samples"]]
    assert pd.read_csv(folder / "plans.csv")["accumulation_steps"].iloc[0] == 1
    assert json.loads(json.dumps(read(folder).to_dict())) == ran.report


def test_the_report_has_every_field_of_the_contract(cli: Cli, workload: WriteWorkload) -> None:
    report = cli("probe", workload(), "--target-batch", "8", "--device", "cpu", "--json").report

    assert set(report) >= {
        "schema_version", "created_at", "environment", "device", "budget", "workload", "target_batch", "world_size",
        "samples", "memory_model", "plan", "plans", "tuning", "warnings",
    }  # fmt: skip
    assert set(report["device"]) >= {"kind", "name", "uuid", "total_bytes", "free_bytes"}
    assert set(report["budget"]) >= {"limit_bytes", "reserve_bytes", "source"}
    assert set(report["samples"][0]) >= {
        "trial", "phase", "micro_batch", "accumulation_steps", "outcome", "peak_allocated_bytes",
        "peak_reserved_bytes", "device_used_bytes", "step_seconds", "samples_per_second", "alloc_retries", "message",
    }  # fmt: skip
    assert set(report["memory_model"]) >= {"fixed_bytes", "bytes_per_sample", "overhead_bytes", "worst_miss_bytes"}
    assert set(report["plan"]) >= {
        "micro_batch", "accumulation_steps", "micro_batches", "world_size", "effective_batch", "peak_bytes",
        "headroom_bytes", "samples_per_second", "options",
    }  # fmt: skip


def test_progress_tells_each_size_its_peak_and_its_speed_on_stderr(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("probe", workload(), "--target-batch", "8", "--device", "cpu")

    rows = [line.split() for line in ran.err.splitlines() if line.endswith((" ok", " confirmed"))]
    assert [(row[0], row[-1]) for row in rows] == [("2", "ok"), ("8", "ok"), ("8", "confirmed")]
    assert all("MiB" in row and row[4].endswith("%") for row in rows)


def test_quiet_leaves_only_the_plan(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("probe", workload(), "--target-batch", "8", "--device", "cpu", "-q")

    assert ran.err == ""
    assert ran.out.startswith("plan  ")


def test_verbose_shows_what_the_workload_prints(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("print('hello from the [file]')")

    assert "hello from the [file]" in cli("probe", path, "--target-batch", "2", "--device", "cpu", "-v").err
    assert "hello" not in cli("probe", path, "--target-batch", "2", "--device", "cpu").err


def test_ranks_share_the_target(cli: Cli, workload: WriteWorkload) -> None:
    plan = cli("probe", workload(), "--target-batch", "32", "--world-size", "4", "--device", "cpu", "--json").report[
        "plan"
    ]

    assert (plan["micro_batch"], plan["world_size"], plan["effective_batch"]) == (8, 4, 32)


def test_a_nan_loss_is_a_warning_not_a_failure(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("def loss(model, batch): return model(batch[0]).mean() * float('nan')")

    ran = cli("probe", path, "--target-batch", "4", "--device", "cpu", "--json")

    assert ran.code == 0
    assert any("nan" in warning for warning in ran.report["warnings"])


def test_a_loss_sum_with_its_count_is_taken(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("def loss(model, batch): return model(batch[0]).square().sum(), torch.tensor(len(batch[0]))")

    assert cli("probe", path, "--target-batch", "4", "--device", "cpu").code == 0


def test_a_size_that_is_killed_is_passed_over_and_the_samples_are_kept(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("""
        def loss(model, batch):
            if len(batch[0]) >= 8: os.kill(os.getpid(), signal.SIGKILL)
            return model(batch[0]).mean()
    """)

    report = cli("probe", path, "--target-batch", "16", "--split", "even", "--device", "cpu", "--json").report

    assert [(s["micro_batch"], s["outcome"]) for s in report["samples"]] == [
        (2, "ok"), (16, "killed"), (8, "killed"), (4, "ok"), (4, "ok"),
    ]  # fmt: skip
    assert report["plan"]["micro_batch"] == 4
    assert any("micro-batch 8 counts as too large" in warning for warning in report["warnings"])


def test_what_runs_in_the_search_but_not_in_a_fresh_process_is_not_returned(
    cli: Cli, workload: WriteWorkload, tmp_path: Path
) -> None:
    path = workload(f"""
        import pathlib
        runs = pathlib.Path({str(tmp_path / "runs")!r})
        runs.write_text(runs.read_text() + "x" if runs.exists() else "x")  # one mark for each process
        def loss(model, batch):
            if len(batch[0]) >= 8 and len(runs.read_text()) > 2: raise MemoryError  # not in the search
            return model(batch[0]).mean()
    """)

    report = cli("probe", path, "--target-batch", "16", "--split", "even", "--device", "cpu", "--json").report

    assert report["plan"]["micro_batch"] < 8
    assert report["bracket"]["largest_ok"] == 16
    assert any("not in a fresh process" in warning for warning in report["warnings"])


def test_the_python_call_gives_the_same_report_and_writes_nothing_unless_asked(
    workload: WriteWorkload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workload()
    monkeypatch.chdir(tmp_path)

    report = autoaccum.probe(path, target_batch=8, device="cpu", memory_budget="1GiB", tune_trials=0)

    assert report.plan is not None
    assert (report.plan.micro_batch, report.plan.rank_batch) == (8, 8)
    assert report.budget is not None
    assert report.budget.limit_bytes == 1024 * MIB
    assert [p.name for p in tmp_path.iterdir()] == ["model.py"]


def test_env_says_what_is_here(cli: Cli) -> None:
    ran = cli("env")

    assert ran.code == 0
    assert {"device", "memory", "default", "torch", "python", "driver"} <= {
        line.split()[0] for line in ran.out.splitlines()
    }

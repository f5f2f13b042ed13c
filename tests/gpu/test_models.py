"""The main job on six models, each on three virtual devices that the whole target does not fit."""

from __future__ import annotations

import pytest

from autoaccum.records import Outcome, Trial
from autoaccum.solve import candidates
from tests.conftest import Cli

from .conftest import WORKLOADS, StartWorker

pytestmark = pytest.mark.gpu

TARGET = 32
DEVICES = {
    "mlp": ("520MiB", "600MiB", "720MiB"),
    "gpt": ("480MiB", "640MiB", "1GiB"),
    "gpt_bf16": ("480MiB", "640MiB", "1GiB"),
    "resnet": ("352MiB", "400MiB", "512MiB"),
    "lstm": ("448MiB", "576MiB", "800MiB"),
    "unet": ("640MiB", "1GiB", "2GiB"),
}


@pytest.mark.parametrize(("model", "size"), [(model, size) for model, sizes in DEVICES.items() for size in sizes])
def test_the_plan_is_exact_ran_in_a_fresh_process_and_the_next_candidate_does_not_fit(
    model: str, size: str, cli: Cli, start_on: StartWorker
) -> None:
    # Near the limit a convolution does without its workspace, and then what fits depends on what ran before.
    path, device = WORKLOADS / f"{model}.py", f"virtual:{size},cudnn-share=0"

    report = cli("probe", path, "--target-batch", str(TARGET), "--device", device, "--json").report

    plan, limit = report["plan"], report["budget"]["limit_bytes"]
    assert plan["effective_batch"] == sum(plan["micro_batches"]) == TARGET
    assert plan["accumulation_steps"] > 1
    confirmed = report["samples"][-1]
    assert (confirmed["phase"], confirmed["outcome"], confirmed["fresh"]) == ("confirm", "ok", True)
    assert (confirmed["micro_batch"], confirmed["accumulation_steps"]) == (
        plan["micro_batch"],
        plan["accumulation_steps"],
    )
    assert plan["peak_bytes"] == confirmed["device_used_bytes"] <= limit
    sizes = candidates(TARGET, "auto")
    larger = sizes[sizes.index(plan["micro_batch"]) + 1]
    failed = [s["micro_batch"] for s in report["samples"] if s["outcome"] == "oom"]
    assert larger in failed or larger == report["certificate"]["next_micro_batch"]
    again = start_on(device, path, limit).run(1, Trial(micro_batch=larger, updates=3), smaller_ran=True).sample
    assert again.outcome is Outcome.OOM

"""Tuning on a GPU: knobs that make room, energy, time from events; on the virtual one with simulated time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Cli, WriteWorkload

pytestmark = pytest.mark.gpu

WORKLOADS = Path(__file__).parent / "workloads"

# Many blocks, so that what they keep for the backward pass is most of the memory.
DEEP_GPT = f"""
    import sys
    sys.path.insert(0, {str(WORKLOADS)!r})
    import gpt
    gpt.VOCABULARY, gpt.CONTEXT, gpt.WIDTH, gpt.HEADS, gpt.LAYERS = 512, 512, 256, 8, 24
    from gpt import build_model, make_batch, loss, build_optimizer
"""
# Two matrix products of known cost: 2 * 3 * 2 * size * 1024 * 4096 operations for forward and backward.
PRODUCTS = """
    import torch
    from torch import nn

    def build_model():
        return nn.Sequential(nn.Linear(1024, 4096, bias=False), nn.Linear(4096, 1024, bias=False))

    def make_batch(size):
        return torch.zeros(size, 1024), torch.zeros(size, 1024)

    def build_optimizer(model):
        return torch.optim.SGD(model.parameters(), 0.1)
"""


def test_a_gpt_whose_size_1_does_not_fit_is_saved_by_checkpointing_and_told_the_price(
    cli: Cli, workload: WriteWorkload
) -> None:
    path = workload(base=DEEP_GPT, name="deep.py")
    probe = ("probe", path, "--target-batch", "16", "--device", "virtual:700MiB,gflops=3000")

    plain = cli(*probe)
    allowed = cli(
        *probe, "--allow", "bf16,checkpoint,channels_last", "--tune-trials", "6", "--tune-seconds", "20", "--json"
    )

    assert plain.code == 3
    assert "--allow checkpoint" in plain.error
    report = allowed.report
    assert report["plan"]["options"]["checkpoint"] in ("half", "all")
    assert report["plan"]["peak_bytes"] <= report["budget"]["limit_bytes"]
    assert any("nothing fits as it is; with all blocks checkpointed" in warning for warning in report["warnings"])
    (price,) = [line for line in report["advice"] if "checkpointed:" in line]
    assert "forward passes are computed twice" in price or "an update takes" in price
    assert report["tuning"]["unsupported"]["channels_last"] == "the model has no Conv2d"
    assert {s["outcome"] for s in report["samples"] if not s["options"]} == {"oom"}


def test_the_time_of_an_update_is_that_of_the_devices_work(cli: Cli, workload: WriteWorkload) -> None:
    path = workload(base=PRODUCTS)

    report = cli(
        "probe", path, "--target-batch", "256", "--device", "virtual:2GiB,gflops=200", "--json",
        "--tune-trials", "3", "--tune-seconds", "20", "--allow", "none",
    ).report  # fmt: skip

    # The first layer's input needs no gradient: five products instead of six.
    expected = 5 * 2 * 256 * 1024 * 4096 / 200e9
    best = report["tuning"]["trials"][report["tuning"]["best"]]
    assert best["update_seconds"] == pytest.approx(expected, rel=0.1)
    assert report["plan"]["samples_per_second"] == pytest.approx(256 / expected, rel=0.1)
    assert 0.2 < best["forward_seconds"] / best["update_seconds"] < 0.6


def test_energy_is_measured_and_can_be_the_objective(cli: Cli, workload: WriteWorkload) -> None:
    path = workload(base=PRODUCTS)

    ran = cli(
        "probe", path, "--target-batch", "64", "--objective", "energy", "--json", "--allow", "none",
        "--device", "virtual:2GiB,gflops=100,idle-watts=100,busy-watts=100", "--tune-trials", "2",
        "--tune-seconds", "30",
    )  # fmt: skip

    tuning = ran.report["tuning"]
    assert tuning["objective"] == "energy"
    for trial in tuning["trials"]:
        # A device that always draws 100 W uses as many joules as 100 times the seconds.
        assert trial["joules_per_sample"] == pytest.approx(100 * trial["update_seconds"] / 64, rel=0.15)


def test_expandable_segments_are_a_process_of_their_own(cli: Cli, workload: WriteWorkload, tmp_path: Path) -> None:
    log = tmp_path / "log"
    path = workload(
        PRODUCTS
        + f"""
    import os
    with open({str(log)!r}, "a") as file:
        print(os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""), file=file)
    """,
        base="",
    )

    report = cli(
        "probe", path, "--target-batch", "8", "--device", "virtual:2GiB,gflops=100", "--json",
        "--tune-trials", "8", "--tune-seconds", "20",
    ).report  # fmt: skip

    tried = [trial for trial in report["tuning"]["trials"] if trial["options"].get("expandable_segments")]
    assert tried
    assert all(trial["outcome"] in ("ok", "pruned") for trial in tried)
    assert {"", "expandable_segments:True"} <= set(log.read_text().splitlines())


def test_without_simulated_time_there_is_nothing_to_tune(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("probe", workload(base=PRODUCTS), "--target-batch", "8", "--device", "virtual:2GiB", "--tune-trials", "4")

    report = json.loads(next((cli.folder / "results").glob("*/report.json")).read_text())
    assert ran.code == 0
    assert report["tuning"] is None

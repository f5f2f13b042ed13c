"""Somebody else on the device, from the start or growing meanwhile: what is returned still fits."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoaccum.records import Trial
from autoaccum.units import GIB, MIB
from autoaccum.virtual import VirtualGpu
from tests.conftest import Cli, WriteWorkload

from .conftest import WIDE, Rig, StartWorker

pytestmark = pytest.mark.gpu


@pytest.fixture
def shared_gpu(rig: Rig, tmp_path: Path) -> dict[str, str]:
    """A device of 2 GiB whose tenant outlives the processes that let it grow."""
    environment = rig(VirtualGpu(total_bytes=2 * GIB, state_file=tmp_path / "state"))
    del environment["AUTOACCUM_VIRTUAL_OTHER_BYTES"]  # else the next process resets it
    return environment


def test_what_a_tenant_holds_from_the_start_is_left_to_it(cli: Cli, workload: WriteWorkload) -> None:
    report = cli(
        "probe", workload(base=WIDE), "--target-batch", "16", "--device", "virtual:2GiB,other=1GiB", "--json"
    ).report

    assert report["device"]["total_bytes"] == 2 * GIB
    assert report["device"]["free_bytes"] == 1 * GIB
    assert report["budget"]["limit_bytes"] == int(0.95 * GIB)
    assert report["plan"]["accumulation_steps"] > 1
    assert report["plan"]["peak_bytes"] <= report["budget"]["limit_bytes"]


def test_a_tenant_that_grows_in_the_middle_of_the_search_is_adapted_to(
    cli: Cli, workload: WriteWorkload, shared_gpu: dict[str, str], start_on: StartWorker
) -> None:
    path = workload(
        """
        def loss(model, batch):
            if len(batch) >= 8: control.set_other_bytes(1 << 30)
            return forward(model, batch)
        """,
        base=WIDE,
    )

    ran = cli("probe", path, "--target-batch", "32", "--device", "cuda", "--json", **shared_gpu)

    assert ran.code == 0, ran.err
    plan = ran.report["plan"]
    assert plan["effective_batch"] == 32
    assert plan["peak_bytes"] <= 1 * GIB
    again = start_on("cuda", path, ran.report["budget"]["limit_bytes"], shared_gpu)
    assert again.ready.device.free_bytes == 1 * GIB
    assert again.run(1, Trial(micro_batch=plan["micro_batch"]), smaller_ran=True).sample.ok


def test_a_tenant_that_grows_between_search_and_confirmation_is_seen_and_told(
    cli: Cli, workload: WriteWorkload
) -> None:
    path = workload("if processes() > 1: control.set_other_bytes(1 << 30)", base=WIDE)

    ran = cli("probe", path, "--target-batch", "32", "--device", "virtual:2GiB", "--json")

    assert ran.code == 0, ran.err
    plan, bracket = ran.report["plan"], ran.report["bracket"]
    assert plan["micro_batch"] < bracket["largest_ok"]
    assert plan["peak_bytes"] <= 1 * GIB
    assert any("another process took some meanwhile" in warning for warning in ran.report["warnings"])


@pytest.mark.parametrize(
    ("left", "code", "told"),
    [
        (64 * MIB, 3, "what ran once did not run again in a fresh process"),
        (0, 5, "cuda:0 is not usable: others leave no room to start in"),
    ],
)
def test_a_tenant_that_takes_nearly_everything_leaves_one_line_and_the_samples(
    left: int, code: int, told: str, cli: Cli, workload: WriteWorkload, shared_gpu: dict[str, str]
) -> None:
    path = workload(
        f"""
        def loss(model, batch):
            if len(batch) >= 8: control.set_other_bytes((2 << 30) - (256 << 20) - {left})  # but for the context
            return forward(model, batch)
        """,
        base=WIDE,
    )

    ran = cli("probe", path, "--target-batch", "32", "--device", "cuda", "--json", **shared_gpu)

    assert ran.code == code
    assert told in ran.error
    assert [s["micro_batch"] for s in ran.report["samples"] if s["outcome"] == "ok"][:1] == [2]
    assert ran.report["plan"] is None


def test_a_device_that_is_full_before_the_start_is_exit_5(cli: Cli, rig: Rig, workload: WriteWorkload) -> None:
    full = rig(VirtualGpu(total_bytes=1 * GIB, other_bytes=1 * GIB))

    ran = cli("probe", workload(base=WIDE), "--target-batch", "4", "--device", "cuda", **full)

    assert ran.code == 5
    assert ran.error == "error: cuda:0 is not usable: others leave no room to start in"

"""What is special about --device virtual:..., and the ends that a probe on it can come to."""

from __future__ import annotations

import re

import pytest

from autoaccum.units import GIB, MIB
from tests.conftest import Cli, WriteWorkload

from .conftest import WIDE, WORKLOADS

pytestmark = pytest.mark.gpu


def test_env_describes_the_virtual_device(cli: Cli) -> None:
    ran = cli("env", "--device", "virtual:8GiB")

    assert ran.code == 0
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in ran.out.splitlines() if "  " in line)
    assert facts["device"].startswith("virtual  autoaccum virtual GPU  ")
    assert facts["memory"] == "8.00 GiB free of 8.00 GiB"
    assert facts["default budget"] == "7.60 GiB"
    assert facts["warning"].startswith("no throughput")


@pytest.mark.parametrize("context", [0, 512])
def test_the_overhead_is_the_context_of_the_device(context: int, cli: Cli) -> None:
    found = cli("env", "--device", f"virtual:8GiB,context={context}MiB".replace("=0MiB", "=0"), "--json").report

    assert found["device"]["overhead_bytes"] == context * MIB
    assert found["device"]["free_bytes"] == 8 * GIB


def test_the_memory_model_has_the_context_as_its_overhead(cli: Cli, workload: WriteWorkload) -> None:
    report = cli(
        "probe", workload(base=WIDE), "--target-batch", "8", "--device", "virtual:2GiB,context=777MiB", "--json"
    ).report

    assert report["memory_model"]["overhead_bytes"] == 777 * MIB
    assert {s["device_used_bytes"] - s["peak_reserved_bytes"] for s in report["samples"]} == {777 * MIB}


def test_without_simulated_time_there_is_no_throughput_and_a_warning_says_why(
    cli: Cli, workload: WriteWorkload
) -> None:
    report = cli("probe", workload(base=WIDE), "--target-batch", "4", "--device", "virtual:1GiB", "--json").report

    figures = [*report["samples"], report["plan"]]
    assert {figure["samples_per_second"] for figure in figures} == {None}
    assert any("kernels of a virtual GPU take no time" in warning for warning in report["warnings"])


def test_with_simulated_time_there_is_throughput(cli: Cli) -> None:
    report = cli(
        "probe", WORKLOADS / "gpt.py", "--target-batch", "4", "--device", "virtual:1GiB,gflops=100", "--json"
    ).report

    assert report["plan"]["samples_per_second"] > 0
    assert all(sample["samples_per_second"] > 0 for sample in report["samples"])
    assert not any("no throughput" in warning for warning in report["warnings"])


def test_nothing_fits_is_exit_3_with_a_lower_bound_that_is_beyond_the_budget(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("probe", workload(base=WIDE), "--target-batch", "4", "--device", "virtual:300MiB")

    assert ran.code == 3
    bound = re.search(
        r"nothing fits: micro-batch 1 needs more than ([0-9.]+) MiB and the budget is 285.0 MiB", ran.error
    )
    assert bound is not None, ran.error
    assert float(bound[1]) > 285.0


def test_a_budget_below_the_context_alone_fits_nothing(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli(
        "probe", workload(base=WIDE), "--target-batch", "4", "--memory-budget", "200MiB", "--device", "virtual:1GiB"
    )

    assert ran.code == 3
    assert "nothing fits" in ran.error

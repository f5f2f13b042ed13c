"""The budget on a GPU: kept at every moment, and what people may ask for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoaccum.records import Outcome, Trial
from autoaccum.units import GIB, MIB
from autoaccum.virtual import VirtualGpu
from tests.conftest import Cli, WriteWorkload

from .conftest import WIDE, WORKLOADS, Rig, StartWorker

pytestmark = pytest.mark.gpu

# Reads as fast as it can until its stdin closes, then prints the largest figure and how many there were.
SAMPLER = """
import json, select, sys
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
peak = readings = 0
print(flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    peak = max(peak, pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    readings += 1
print(json.dumps([peak, readings]))
"""


@contextmanager
def sampling(environment: dict[str, str]) -> Iterator[list[int]]:
    """Have a second process watch the device; the list holds the peak and the readings afterwards."""
    seen: list[int] = []
    sampler = subprocess.Popen(
        [sys.executable, "-c", SAMPLER],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert sampler.stdout is not None
    sampler.stdout.readline()
    try:
        yield seen
    finally:
        out, _ = sampler.communicate(timeout=30)
        seen.extend(json.loads(out))


def test_the_device_never_holds_more_than_the_budget(cli: Cli, rig: Rig, tmp_path: Path) -> None:
    gpu = rig(VirtualGpu(total_bytes=4 * GIB, state_file=tmp_path / "state"))

    with sampling(gpu) as seen:
        report = cli(
            "probe", WORKLOADS / "gpt.py", "--target-batch", "32", "--memory-budget", "700MiB",
            "--device", "cuda", "--json", **gpu,
        ).report  # fmt: skip

    peak, readings = seen
    assert readings > 1000
    assert report["plan"]["peak_bytes"] <= peak <= report["budget"]["limit_bytes"] == 700 * MIB
    assert any(sample["outcome"] == "oom" for sample in report["samples"])


def test_the_allocator_refuses_what_would_go_beyond_the_limit(
    start_on: StartWorker, workload: WriteWorkload, tmp_path: Path
) -> None:
    path = workload(
        """
        def loss(model, batch):
            held = []
            while True:
                held.append(torch.empty(32 << 20, dtype=torch.uint8, device=batch.device))
                (HERE / "used").write_text(str(control.used_bytes()))
        """,
        base=WIDE,
    )

    sample = start_on("virtual:4GiB", path, 600 * MIB).run(1, Trial(micro_batch=1), smaller_ran=True).sample

    assert sample.outcome is Outcome.OOM
    assert 568 * MIB < int((tmp_path / "used").read_text()) <= 600 * MIB


def test_a_share_is_of_the_whole_device_not_of_what_is_free(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli(
        "probe", workload(base=WIDE), "--target-batch", "2", "--memory-budget", "50%",
        "--device", "virtual:2GiB,other=512MiB", "--json",
    )  # fmt: skip

    assert ran.report["budget"] == {"limit_bytes": 1 * GIB, "reserve_bytes": 0, "source": "user"}


def test_a_budget_beyond_what_is_free_is_capped_with_a_warning(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli(
        "probe", workload(base=WIDE), "--target-batch", "2", "--memory-budget", "2GiB",
        "--device", "virtual:2GiB,other=512MiB", "--json",
    )  # fmt: skip

    assert ran.report["budget"] == {"limit_bytes": 1536 * MIB, "reserve_bytes": 0, "source": "capped"}
    assert any("2.00 GiB is more than is free (1.50 GiB)" in warning for warning in ran.report["warnings"])

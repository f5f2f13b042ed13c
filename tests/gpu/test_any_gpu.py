"""What needs no controlled device: it runs on a virtual GPU, and on the machine's own where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoaccum.records import Trial
from autoaccum.units import MIB
from tests.conftest import Cli, WriteWorkload

from .conftest import SEGMENT_BYTES, WIDE, WORKLOADS, StartWorker

pytestmark = pytest.mark.gpu

# Asks the driver what this process holds at the end of each update, when what is cached is still held.
ASKING = """
    import pynvml

    class Asking(torch.optim.SGD):
        def step(self):
            super().step()
            torch.cuda.synchronize()
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID("GPU-" + str(torch.cuda.get_device_properties(0).uuid))
            listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            held = [process.usedGpuMemory for process in listed if process.pid == os.getpid()]
            (HERE / "held").write_text(" ".join(map(str, held)))

    def build_optimizer(model):
        return Asking(model.parameters(), 0.1)
"""


def test_a_whole_probe_finds_a_plan_within_its_budget(any_gpu: str, cli: Cli) -> None:
    ran = cli(
        "probe", WORKLOADS / "unet.py", "--target-batch", "48", "--memory-budget", "2GiB", "--device", any_gpu, "--json"
    )

    assert ran.code == 0, ran.err
    plan = ran.report["plan"]
    assert plan["effective_batch"] == sum(plan["micro_batches"]) == 48
    assert plan["accumulation_steps"] > 1
    assert plan["peak_bytes"] <= ran.report["budget"]["limit_bytes"]


def test_env_finds_the_gpu(any_gpu: str, cli: Cli) -> None:
    found = cli("env", "--device", any_gpu, "--json").report

    assert found["device"]["kind"] == any_gpu.partition(":")[0]
    assert 0 < found["device"]["overhead_bytes"] < found["device"]["free_bytes"] <= found["device"]["total_bytes"]
    assert found["environment"]["driver"]


def test_the_meter_agrees_with_what_the_driver_says_the_process_holds(
    any_gpu: str, start_on: StartWorker, workload: WriteWorkload, tmp_path: Path
) -> None:
    worker = start_on(any_gpu, workload(ASKING, base=WIDE))

    sample = worker.run(1, Trial(micro_batch=4), smaller_ran=True).sample

    assert sample.ok, sample.message
    held = (tmp_path / "held").read_text()
    if not held:
        pytest.skip("the driver does not list this process")
    assert abs((sample.device_used_bytes or 0) - int(held)) <= SEGMENT_BYTES
    # A real context grows with the kernels that are loaded.
    assert (sample.device_used_bytes or 0) >= (sample.peak_reserved_bytes or 0) + worker.ready.device.overhead_bytes
    assert (sample.peak_reserved_bytes or 0) >= 4 * 3 * 16 * MIB

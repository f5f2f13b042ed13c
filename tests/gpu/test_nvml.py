"""NVML as it fails on real machines: the probe works without it, and says what is lost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from autoaccum.device.nvml import Nvml
from autoaccum.units import GIB, MIB
from autoaccum.virtual import VirtualGpu
from tests.conftest import Cli, WriteWorkload

from .conftest import WIDE, Rig

pytestmark = pytest.mark.gpu

GPU = VirtualGpu(total_bytes=1 * GIB, context_bytes=320 * MIB, other_bytes=128 * MIB)


@pytest.fixture
def probed(request: pytest.FixtureRequest, cli: Cli, rig: Rig, workload: WriteWorkload) -> dict[str, Any]:
    """A probe's report where NVML fails in the parameter's way."""
    ran = cli(
        "probe", workload(base=WIDE), "--target-batch", "16", "--device", "cuda", "--json",
        **rig(GPU, AUTOACCUM_VIRTUAL_NVML=request.param),
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return ran.report


@pytest.mark.parametrize("probed", ["missing", "no-driver", "denied"], indirect=True)
def test_without_nvml_the_probe_works_and_says_that_the_context_is_not_counted(probed: dict[str, Any]) -> None:
    assert probed["plan"]["effective_batch"] == 16
    assert probed["plan"]["accumulation_steps"] > 1
    assert probed["device"]["overhead_bytes"] == 0
    # CUDA's own figure is what is left beside the context: nobody's memory is promised.
    assert probed["device"]["free_bytes"] == GPU.total_bytes - GPU.other_bytes - GPU.context_bytes
    assert any("NVML is not usable" in w and "context's memory is not counted" in w for w in probed["warnings"])


@pytest.mark.parametrize("probed", ["no-figures", "not-listed"], indirect=True)
def test_without_figures_of_processes_the_overhead_is_what_the_device_grew_by(probed: dict[str, Any]) -> None:
    assert probed["plan"]["effective_batch"] == 16
    assert probed["device"]["overhead_bytes"] == GPU.context_bytes
    assert probed["device"]["free_bytes"] == GPU.total_bytes - GPU.other_bytes
    assert probed["memory_model"]["overhead_bytes"] == GPU.context_bytes
    assert not any("NVML" in warning for warning in probed["warnings"])


def test_a_mig_slice_is_read_and_found_beside_whole_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    # No virtual GPU has slices: these are a driver's answers, for two GPUs of which the second hides from us.
    def answers(table: dict[Any, Any]) -> Callable[..., Any]:
        def answer(*key: Any) -> Any:
            if key not in table:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return table[key]

        return answer

    used = {
        ("gpu",): SimpleNamespace(total=80, free=70, used=10),
        ("slice",): SimpleNamespace(total=20, free=15, used=5),
    }
    driver: dict[str, dict[Any, Any]] = {
        "nvmlInit": {(): None},
        "nvmlDeviceGetCount": {(): 2},
        "nvmlDeviceGetHandleByIndex": {(0,): "gpu"},
        "nvmlDeviceGetMaxMigDeviceCount": {("gpu",): 7},
        "nvmlDeviceGetMigDeviceHandleByIndex": {("gpu", 3): "slice"},
        "nvmlDeviceGetUUID": {("gpu",): "GPU-aa", ("slice",): "MIG-bb"},
        "nvmlDeviceGetMemoryInfo": used,
        "nvmlDeviceGetHandleByUUID": {("GPU-aa",): "gpu", ("MIG-bb",): "slice"},
    }
    for name, table in driver.items():
        monkeypatch.setattr(pynvml, name, answers(table))

    nvml = Nvml()

    assert nvml.used_by_uuid() == {"GPU-aa": 10, "MIG-bb": 5}
    assert [nvml.find(uuid) for uuid in ("aa", "bb", "cc")] == ["gpu", "slice", None]

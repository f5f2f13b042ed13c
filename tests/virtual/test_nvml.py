from __future__ import annotations

import pytest

from autoaccum.virtual import VirtualGpu

from .conftest import GIB, Run

pytestmark = pytest.mark.gpu

START = """
import pynvml as nvml
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)
"""


@pytest.fixture(autouse=True)
def _needs_pynvml() -> None:
    pytest.importorskip("pynvml")


def test_nvml_agrees_with_cuda(run: Run) -> None:
    code = (
        START
        + """
keep = gpu_bytes(2 * GIB)
info = nvml.nvmlDeviceGetMemoryInfo(handle)
second = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
report(nvml=[info.free, info.total], second=[second.free, second.total], cuda=torch.cuda.mem_get_info())
"""
    )

    seen = run(code)

    assert seen["nvml"] == seen["second"] == seen["cuda"]


def test_this_process_is_listed_with_what_it_holds(run: Run) -> None:
    code = (
        START
        + """
keep = gpu_bytes(2 * GIB)
listed = [[p.pid == os.getpid(), p.usedGpuMemory] for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
report(listed=listed)
"""
    )

    assert run(code)["listed"] == [[True, 2 * GIB + (256 << 20)]]


def test_the_other_tenant_is_listed(run: Run) -> None:
    code = (
        START
        + """
report(listed=[[p.pid, p.usedGpuMemory] for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)])
"""
    )

    assert run(code, VirtualGpu(total_bytes=8 * GIB, other_bytes=3 * GIB))["listed"] == [[1, 3 * GIB]]


def test_a_device_is_found_by_uuid_and_by_bus(run: Run) -> None:
    code = (
        START
        + """
uuid = "GPU-" + str(torch.cuda.get_device_properties(1).uuid)
second = nvml.nvmlDeviceGetHandleByUUID(uuid)
again = nvml.nvmlDeviceGetHandleByPciBusId(nvml.nvmlDeviceGetPciInfo(second).busId)
report(index=nvml.nvmlDeviceGetIndex(second), again=nvml.nvmlDeviceGetIndex(again))
"""
    )

    assert run(code, [VirtualGpu(total_bytes=GIB)] * 2) == {"index": 1, "again": 1}


def test_hidden_devices_are_still_counted(run: Run) -> None:
    code = START + "report(nvml=nvml.nvmlDeviceGetCount(), cuda=torch.cuda.device_count())"

    seen = run(code, [VirtualGpu(total_bytes=GIB)] * 3, {"CUDA_VISIBLE_DEVICES": "2"})

    assert seen == {"nvml": 3, "cuda": 1}


def test_an_unknown_index_is_refused(run: Run) -> None:
    code = (
        START
        + """
try:
    nvml.nvmlDeviceGetHandleByIndex(9)
except nvml.NVMLError_InvalidArgument:
    report(refused=True)
"""
    )

    assert run(code) == {"refused": True}


def test_pytorch_reads_its_own_figures_through_nvml(run: Run) -> None:
    code = """
    keep = gpu_bytes(2 * GIB)
    used, busy = torch.cuda.device_memory_used(), torch.cuda.utilization()
    report(used=used, busy=busy, text=torch.cuda.list_gpu_processes())
    """

    seen = run(code)

    assert (seen["used"], seen["busy"]) == (2 * GIB + (256 << 20), 0)
    assert "uses     2304.000 MB GPU memory" in seen["text"]


@pytest.mark.parametrize(
    ("way", "error"),
    [("missing", "NVMLError_LibraryNotFound"), ("no-driver", "NVMLError_DriverNotLoaded")],
)
def test_nvml_can_be_absent_while_cuda_works(run: Run, way: str, error: str) -> None:
    code = """
    import pynvml as nvml
    keep = gpu_bytes(GIB)
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        report(error=type(error).__name__)
    """

    assert run(code, env={"AUTOACCUM_VIRTUAL_NVML": way}) == {"error": error}


def test_nvml_can_deny_memory_and_processes(run: Run) -> None:
    code = (
        START
        + """
errors = []
for query in (nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlDeviceGetComputeRunningProcesses):
    try:
        query(handle)
    except nvml.NVMLError as error:
        errors.append(type(error).__name__)
report(errors=errors, name=nvml.nvmlDeviceGetName(handle))
"""
    )

    seen = run(code, env={"AUTOACCUM_VIRTUAL_NVML": "denied"})

    assert seen == {"errors": ["NVMLError_NoPermission"] * 2, "name": "autoaccum virtual GPU"}


def test_nvml_can_list_processes_without_figures(run: Run) -> None:
    code = (
        START
        + """
keep = gpu_bytes(GIB)
listed = [[p.pid == os.getpid(), p.usedGpuMemory] for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
report(listed=listed, used=nvml.nvmlDeviceGetMemoryInfo(handle).used)
"""
    )

    seen = run(code, env={"AUTOACCUM_VIRTUAL_NVML": "no-figures"})

    assert seen == {"listed": [[True, None]], "used": GIB + (256 << 20)}


def test_nvml_can_leave_this_process_out(run: Run) -> None:
    code = (
        START
        + """
keep = gpu_bytes(GIB)
listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
report(count=len(listed), used=nvml.nvmlDeviceGetMemoryInfo(handle).used)
"""
    )

    seen = run(code, env={"AUTOACCUM_VIRTUAL_NVML": "not-listed"})

    assert seen == {"count": 0, "used": GIB + (256 << 20)}

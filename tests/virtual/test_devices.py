from __future__ import annotations

import pytest

from autoaccum.virtual import VirtualGpu

from .conftest import GIB, Run

pytestmark = pytest.mark.gpu

UNLIKE = (
    VirtualGpu(total_bytes=8 * GIB, name="large", capability="9.0", multiprocessors=132),
    VirtualGpu(total_bytes=4 * GIB, name="small", capability="7.5", multiprocessors=40),
)
DESCRIBE = """
seen = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
report(
    devices=[[p.name, p.total_memory // GIB, f"{p.major}.{p.minor}", p.multi_processor_count] for p in seen]
)
"""


def test_unlike_devices_describe_themselves(run: Run) -> None:
    assert run(DESCRIBE, UNLIKE)["devices"] == [["large", 8, "9.0", 132], ["small", 4, "7.5", 40]]


def test_each_device_has_its_own_account(run: Run) -> None:
    code = """
    a = torch.empty(GIB, dtype=torch.uint8, device="cuda:1")
    b = a.to("cuda:0")
    free, total = zip(*(torch.cuda.mem_get_info(i) for i in range(2)))
    report(taken=[total[i] - free[i] - 256 * MIB for i in range(2)])
    """

    assert run(code, UNLIKE)["taken"] == [GIB, GIB]


def test_devices_are_chosen_by_index(run: Run) -> None:
    assert run(DESCRIBE, UNLIKE, {"CUDA_VISIBLE_DEVICES": "1"})["devices"] == [["small", 4, "7.5", 40]]


def test_devices_are_reordered(run: Run) -> None:
    seen = run(DESCRIBE, UNLIKE, {"CUDA_VISIBLE_DEVICES": "1,0"})["devices"]

    assert [device[0] for device in seen] == ["small", "large"]


def test_devices_are_chosen_by_uuid(run: Run) -> None:
    code = "report(uuids=[str(torch.cuda.get_device_properties(i).uuid) for i in range(2)])"
    uuids = run(code, UNLIKE)["uuids"]

    seen = run(DESCRIBE, UNLIKE, {"CUDA_VISIBLE_DEVICES": f"GPU-{uuids[1]}"})["devices"]

    assert [device[0] for device in seen] == ["small"]


def test_what_the_machine_hides_does_not_hide_virtual_devices(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert run("report(count=torch.cuda.device_count())")["count"] == 1


def test_there_can_be_no_device(run: Run) -> None:
    code = "report(available=torch.cuda.is_available(), count=torch.cuda.device_count())"

    assert run(code, []) == {"available": False, "count": 0}


def test_data_parallel_trains_on_two_devices(run: Run) -> None:
    code = """
    model = nn.DataParallel(nn.Linear(64, 64).cuda())
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    report(grad=model.module.weight.grad.shape)
    """

    assert run(code, UNLIKE)["grad"] == [64, 64]


def test_another_tenant_takes_and_gives_back(run: Run) -> None:
    code = """
    from autoaccum.virtual import control
    control.set_other_bytes(7 * GIB)
    crowded = runs_out(GIB)
    control.set_other_bytes(0)
    report(crowded=crowded, alone=runs_out(GIB))
    """

    assert run(code) == {"crowded": True, "alone": False}


def test_a_tenant_can_be_there_from_the_start(run: Run) -> None:
    gpu = VirtualGpu(total_bytes=8 * GIB, other_bytes=5 * GIB)

    assert run("report(free=torch.cuda.mem_get_info()[0])", gpu)["free"] == 3 * GIB - (256 << 20)


def test_the_device_can_shrink(run: Run) -> None:
    code = """
    from autoaccum.virtual import control
    control.set_total_bytes(2 * GIB)
    report(total=torch.cuda.mem_get_info()[1], over=runs_out(2 * GIB))
    """

    assert run(code) == {"total": 2 * GIB, "over": True}


def test_an_allocation_can_be_made_to_fail(run: Run) -> None:
    code = """
    from autoaccum.virtual import control
    keep = [gpu_bytes(GIB)]
    control.fail_after(1)
    keep.append(gpu_bytes(GIB))        # the one that passes
    keep.append(gpu_bytes(GIB))        # fails, and passes when PyTorch tries again
    report(retries=torch.cuda.memory_stats()["num_alloc_retries"])
    """

    assert run(code)["retries"] == 1


def test_used_bytes_counts_everybody(run: Run) -> None:
    gpu = VirtualGpu(total_bytes=8 * GIB, other_bytes=GIB)
    code = """
    from autoaccum.virtual import control
    keep = gpu_bytes(2 * GIB)
    report(used=control.used_bytes())
    """

    assert run(code, gpu)["used"] == 3 * GIB + (256 << 20)


def test_a_device_that_is_not_there_has_no_knobs(run: Run) -> None:
    code = """
    from autoaccum.errors import UsageError
    from autoaccum.virtual import control
    try:
        control.used_bytes(device=3)
    except UsageError as error:
        report(message=str(error))
    """

    assert "no virtual device 3" in run(code)["message"]

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from autoaccum import virtual
from autoaccum.virtual import VirtualGpu

from .conftest import GIB, PRELUDE, ROOT, Run

pytestmark = pytest.mark.gpu


def shared(tmp_path: Path) -> VirtualGpu:
    return VirtualGpu(total_bytes=8 * GIB, state_file=tmp_path / "state")


NEIGHBOUR = """
    import subprocess, sys
    code = "import sys, torch; x = torch.empty(5 << 30, dtype=torch.uint8, device='cuda')"
    code += "; print(flush=True); sys.stdin.read()"
    neighbour = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    neighbour.stdout.readline()
"""


def test_two_processes_compete_for_one_device(run: Run, tmp_path: Path) -> None:
    code = (
        NEIGHBOUR
        + """
    free, crowded = torch.cuda.mem_get_info()[0], runs_out(4 * GIB)
    neighbour.communicate()
    report(free=free, crowded=crowded, later=runs_out(4 * GIB))
    """
    )

    seen = run(code, shared(tmp_path))

    assert seen == {"free": 3 * GIB - 2 * (256 << 20), "crowded": True, "later": False}


def test_a_killed_process_gives_its_memory_back(run: Run, tmp_path: Path) -> None:
    code = (
        NEIGHBOUR
        + """
    before = torch.cuda.mem_get_info()[0]
    neighbour.kill()
    os.waitid(os.P_PID, neighbour.pid, os.WEXITED | os.WNOWAIT)      # dead, and still a zombie
    report(gained=torch.cuda.mem_get_info()[0] - before)
    """
    )

    assert run(code, shared(tmp_path))["gained"] == 5 * GIB + (256 << 20)


def test_a_neighbour_is_listed_by_nvml(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("pynvml")
    code = (
        NEIGHBOUR
        + """
    import pynvml as nvml
    nvml.nvmlInit()
    listed = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(0))
    report(held=[p.usedGpuMemory for p in listed if p.pid == neighbour.pid])
    neighbour.communicate()
    """
    )

    assert run(code, shared(tmp_path))["held"] == [5 * GIB + (256 << 20)]


def test_processes_without_a_state_file_do_not_see_each_other(run: Run) -> None:
    code = (
        NEIGHBOUR
        + """
    report(free=torch.cuda.mem_get_info()[0])
    neighbour.communicate()
    """
    )

    assert run(code)["free"] == 8 * GIB - (256 << 20)


def test_ddp_trains_on_two_ranks(cuda_torch: None, tmp_path: Path) -> None:
    code = PRELUDE + textwrap.dedent("""
    import sys, torch.distributed as dist
    rank = int(sys.argv[1])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank], init_sync=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(64, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated())
    dist.destroy_process_group()
    """)
    gpu = shared(tmp_path)
    env = {**os.environ, **virtual.environment([gpu, gpu]), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", code]
    ranks = [
        subprocess.Popen([*command, str(r), str(tmp_path / "store")], env=env, stdout=subprocess.PIPE, text=True)
        for r in range(2)
    ]

    peaks = [rank.communicate(timeout=120)[0].strip() for rank in ranks]

    assert [rank.returncode for rank in ranks] == [0, 0]
    assert peaks[0] == peaks[1] != ""


def test_a_forked_loader_worker_leaves_the_account_alone(run: Run) -> None:
    code = """
    keep = gpu_bytes(GIB)
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    for _ in torch.utils.data.DataLoader(data, num_workers=2):
        pass
    report(free=torch.cuda.mem_get_info()[0])
    """

    assert run(code)["free"] == 7 * GIB - (256 << 20)

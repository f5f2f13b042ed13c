from __future__ import annotations

import pytest

from autoaccum.virtual import VirtualGpu

from .conftest import GIB, Run

pytestmark = pytest.mark.gpu
MIB = 1 << 20


def test_free_memory_is_the_total_less_the_context(run: Run) -> None:
    gpu = VirtualGpu(total_bytes=8 * GIB, context_bytes=300 * MIB)

    free, total = run("report(info=torch.cuda.mem_get_info())", gpu)["info"]

    assert (free, total) == (8 * GIB - 300 * MIB, 8 * GIB)


def test_an_allocation_is_charged_in_pages_of_two_mebibytes(run: Run) -> None:
    code = """
    import ctypes
    before = torch.cuda.mem_get_info()[0]
    error = ctypes.CDLL(None).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(GIB + 1))
    report(error=error, taken=before - torch.cuda.mem_get_info()[0])
    """

    assert run(code) == {"error": 0, "taken": GIB + 2 * MIB}


def test_what_does_not_fit_raises_out_of_memory(run: Run) -> None:
    code = """
    try:
        gpu_bytes(9 * GIB)
    except torch.OutOfMemoryError as error:
        report(message=str(error))
    """

    assert "Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 8.00 GiB" in run(code)["message"]


def test_the_last_byte_fits_and_one_page_more_does_not(run: Run) -> None:
    code = """
    free = torch.cuda.mem_get_info()[0]
    report(over=runs_out(free + 2 * MIB), exact=runs_out(free))
    """

    assert run(code) == {"over": True, "exact": False}


def test_a_host_without_address_space_is_not_taken_for_a_full_device(run: Run) -> None:
    code = """
    import resource
    gpu_bytes(1)
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
    try:
        gpu_bytes(4 * GIB)
    except RuntimeError as error:
        report(oom=isinstance(error, torch.OutOfMemoryError), message=str(error))
    """

    seen = run(code)

    assert not seen["oom"]
    assert "the host refused address space" in seen["message"]


def test_a_memory_fraction_is_enforced_and_can_be_lifted(run: Run) -> None:
    code = """
    torch.cuda.set_per_process_memory_fraction(0.25)
    limited = runs_out(2.5 * GIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    report(limited=limited, lifted=runs_out(2.5 * GIB))
    """

    assert run(code) == {"limited": True, "lifted": False}


def test_cached_blocks_are_given_back_before_it_runs_out(run: Run) -> None:
    code = """
    blocks = [gpu_bytes(3 * GIB), gpu_bytes(3 * GIB)]
    del blocks
    keep = gpu_bytes(6 * GIB)
    stats = torch.cuda.memory_stats()
    report(retries=stats["num_alloc_retries"], ooms=stats["num_ooms"], reserved=torch.cuda.memory_reserved())
    """

    assert run(code) == {"retries": 1, "ooms": 0, "reserved": 6 * GIB}


def test_expandable_segments_are_charged_and_released(run: Run) -> None:
    code = """
    blocks = [gpu_bytes((700 + 2 * i) * MIB) for i in range(8)]
    held, over = torch.cuda.memory_reserved(), runs_out(3 * GIB)
    expandable = torch.cuda.memory_snapshot()[0]["is_expandable"]
    del blocks
    torch.cuda.empty_cache()
    report(held=held, over=over, expandable=expandable, free=torch.cuda.mem_get_info()[0])
    """

    seen = run(code, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})

    assert seen["held"] >= sum(700 + 2 * i for i in range(8)) * MIB
    assert (seen["over"], seen["expandable"]) == (True, True)
    assert seen["free"] == 8 * GIB - 256 * MIB


def test_the_async_allocator_is_charged_too(run: Run) -> None:
    code = """
    keep = gpu_bytes(3 * GIB)
    backend, reserved = torch.cuda.get_allocator_backend(), torch.cuda.memory_reserved()
    report(reserved=reserved, over=runs_out(6 * GIB), backend=backend)
    """

    seen = run(code, env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})

    assert seen == {"reserved": 3 * GIB, "over": True, "backend": "cudaMallocAsync"}


def test_split_and_collection_settings_are_accepted(run: Run) -> None:
    code = """
    keep = [gpu_bytes(300 * MIB) for _ in range(4)]
    report(reserved=torch.cuda.memory_reserved())
    """
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,garbage_collection_threshold:0.8"}

    assert run(code, env=settings)["reserved"] == 1200 * MIB


def test_a_tensor_of_the_host_survives_the_round_trip(run: Run) -> None:
    code = """
    data = torch.utils.data.TensorDataset(torch.arange(64.0).view(16, 4))
    same = []
    for (x,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, pin_memory=True):
        y = x.cuda(non_blocking=True)
        same.append(x.is_pinned() and torch.equal(y.cpu(), x))
    report(same=same)
    """

    assert run(code)["same"] == [True] * 4


def test_copies_to_the_device_beyond_a_limit_move_nothing(run: Run) -> None:
    gpu = VirtualGpu(total_bytes=8 * GIB, copy_max_bytes=64 << 10)
    code = """
    values = [torch.ones(64 << 10, dtype=torch.uint8), torch.ones((64 << 10) + 1, dtype=torch.uint8)]
    there = [value.cuda() for value in values]
    report(sums=[value.cpu().sum().item() for value in there])
    """

    assert run(code, gpu)["sums"] == [64 << 10, 0]


def test_a_result_reads_as_zero_and_not_as_what_the_block_held_before(run: Run) -> None:
    code = """
    stale = torch.ones(128).cuda()
    del stale
    x = torch.empty(1 << 20, device="cuda")
    report(count=x.nonzero().shape[0], mean=x.mean().item())
    """

    assert run(code) == {"count": 0, "mean": 0.0}


def test_scalars_that_the_host_wrote_are_read_back(run: Run) -> None:
    code = """
    x = torch.tensor([1, 2, 3], device="cuda")
    report(second=x[1].item(), all=x.tolist())
    """

    assert run(code) == {"second": 2, "all": [1, 2, 3]}


def test_checkpointing_lowers_the_peak(run: Run) -> None:
    code = """
    from torch.utils.checkpoint import checkpoint
    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 2048)) for _ in range(8)
    ).cuda()
    peaks = []
    for use in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        x = torch.randn(8192, 2048, device="cuda", requires_grad=True)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False) if use else layer(x)
        x.sum().backward()
        peaks.append(torch.cuda.max_memory_allocated())
        layers.zero_grad()
        del x
    report(plain=peaks[0], checkpointed=peaks[1])
    """

    seen = run(code)

    assert seen["checkpointed"] < 0.7 * seen["plain"]


def test_the_allocator_history_is_recorded(run: Run) -> None:
    code = """
    torch.cuda.memory._record_memory_history()
    keep = gpu_bytes(GIB)
    snapshot = torch.cuda.memory._snapshot()
    report(segments=len(snapshot["segments"]), events=len(snapshot["device_traces"][0]))
    """

    assert run(code) == {"segments": 1, "events": 2}

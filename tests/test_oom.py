from __future__ import annotations

import errno
import signal
from collections.abc import Callable

import pytest

from autoaccum.isolate import Worker
from autoaccum.oom import cause_of_death, is_oom, is_oom_text, requested_bytes
from autoaccum.records import Outcome, Trial
from autoaccum.units import MIB
from tests.conftest import WriteWorkload

# As they were printed by the libraries.
RECORDED = [
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 67108864 bytes. Error code 12 (Cannot allocate memory)",
    "[enforce fail at ..\\c10\\core\\impl\\alloc_cpu.cpp:72] data. DefaultCPUAllocator: not enough memory: you tried "
    "to allocate 151781376 bytes.",
    "could not create a primitive",
    "could not execute a primitive",
    "posix_memalign failed",
    "std::bad_alloc",
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.68 GiB ...",
    "CUDA error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error ... Failed to CUDA calloc async 608",
    "HIP out of memory. Tried to allocate 1.95 GiB.",
    "MPS backend out of memory (MPS allocated: 17.5 GB, other allocations: 500 MB, max allowed: 18.1 GB).",
    "XPU out of memory. Tried to allocate 5.00 GiB.",
    "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
]
OTHERS = [
    "mat1 and mat2 shapes cannot be multiplied (4x5 and 6x7)",
    "CUDA error: device-side assert triggered",
    "expected scalar type Float but found Half",
    "The size of tensor a (3) must match the size of tensor b (4)",
]


@pytest.mark.parametrize("text", RECORDED)
def test_an_out_of_memory_text_is_recognised(text: str) -> None:
    assert is_oom(RuntimeError(text))


@pytest.mark.parametrize("text", OTHERS)
def test_another_error_is_not_taken_for_out_of_memory(text: str) -> None:
    assert not is_oom(RuntimeError(text))


def test_a_user_error_that_speaks_of_memory_is_no_out_of_memory() -> None:
    assert not is_oom(ValueError("set out of memory limit"))


def test_memory_error_and_enomem_are_recognised_by_type() -> None:
    assert is_oom(MemoryError())
    assert is_oom(OSError(errno.ENOMEM, "x"))
    assert not is_oom(OSError(errno.ENOENT, "x"))


def test_an_out_of_memory_behind_another_error_is_recognised() -> None:
    error = ValueError("could not load")
    error.__cause__ = MemoryError()

    assert is_oom(error)


def test_the_size_of_the_failed_request_is_read() -> None:
    assert requested_bytes(RECORDED[0]) == 67108864
    assert requested_bytes("CUDA out of memory. Tried to allocate 2.50 GiB.") == 5 * 2**29
    assert requested_bytes("could not create a primitive") is None


@pytest.mark.parametrize(
    ("returncode", "printed", "smaller_ran", "outcome"),
    [
        (-signal.SIGABRT, "terminate called after throwing an instance of 'std::bad_alloc'", False, Outcome.OOM),
        (-signal.SIGSEGV, "", True, Outcome.OOM),
        (-signal.SIGSEGV, "", False, Outcome.KILLED),
        (-signal.SIGKILL, "", True, Outcome.KILLED),
        (-signal.SIGTERM, "", True, Outcome.KILLED),
        (1, "libgomp: Thread creation failed: Resource temporarily unavailable", True, Outcome.OOM),
        (3, "bye", True, Outcome.FAILED),
        (0, "", True, Outcome.FAILED),
    ],
)
def test_a_dead_worker_gets_the_right_cause(returncode: int, printed: str, smaller_ran: bool, outcome: Outcome) -> None:
    assert cause_of_death(returncode, printed, smaller_ran=smaller_ran)[0] is outcome


# Real ones: each way of running out, from size 8 on, in a worker under a limit.
FILL = """
    import ctypes
    def fill():
        malloc = ctypes.CDLL(None).malloc
        malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        size = 1 << 24
        while size >= 1 << 16:
            size = size if malloc(size) else size // 2

    def loss(model, batch):
        result = model(batch[0]).mean()
        if len(batch[0]) >= 8:
            run_out()
        return result
"""
GUISES = {
    "torch's allocator": "def run_out(): torch.empty(1 << 40)",
    "a MemoryError of Python": "def run_out(): bytearray(1 << 40)",
    "a MemoryError of NumPy": "import numpy\ndef run_out(): numpy.ones(1 << 40)",
    "oneDNN without room for itself": """
def run_out():
    images, kernel = torch.randn(8, 64, 32, 32), torch.randn(64, 64, 3, 3)
    fill()
    nn.functional.conv2d(images, kernel, padding=1)
""",
    "a thread that cannot start": """
import threading
def run_out():
    fill()
    threading.Thread(target=print).start()
""",
    "ENOMEM of the kernel": "import mmap\ndef run_out(): mmap.mmap(-1, 1 << 45, flags=mmap.MAP_PRIVATE)",
    "an abort": """
def run_out():
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'")
    os.abort()
""",
    "a crash": "import ctypes\ndef run_out(): ctypes.string_at(0)",
}


@pytest.mark.parametrize("guise", GUISES)
def test_a_real_out_of_memory_is_an_oom_sample(
    guise: str, workload: WriteWorkload, start: Callable[..., Worker]
) -> None:
    worker = start(workload(FILL + "\n" + GUISES[guise].replace("\n", "\n    ").join(["    ", "\n"])))
    assert worker.run(1, Trial(micro_batch=2), smaller_ran=False).sample.ok

    sample = worker.run(2, Trial(micro_batch=8), smaller_ran=True).sample

    assert sample.outcome is Outcome.OOM, sample


def test_convolutions_in_a_tight_budget_run_out_without_another_outcome(start: Callable[..., Worker]) -> None:
    worker = start("examples/cnn.py", limit_bytes=340 * MIB)

    outcomes = [
        worker.run(n, Trial(micro_batch=size), smaller_ran=n > 1).sample for n, size in ((1, 2), (2, 48), (3, 160))
    ]

    assert [sample.outcome for sample in outcomes] == [Outcome.OK, Outcome.OOM, Outcome.OOM]


def test_printed_text_is_searched_too() -> None:
    assert is_oom_text("...\nlibgomp: Thread creation failed: Resource temporarily unavailable\n")


def test_c_code_without_memory_to_raise_with_is_out_of_memory() -> None:
    assert is_oom(SystemError("error return without exception set"))
    assert not is_oom(SystemError("bad argument to internal function"))

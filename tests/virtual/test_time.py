from __future__ import annotations

import pytest

from autoaccum.virtual import VirtualGpu

from .conftest import GIB, Run

pytestmark = pytest.mark.gpu

TIMED = """
import time

def timed(work):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    started = time.perf_counter()
    work()
    launched = time.perf_counter() - started
    end.record()
    pending = not end.query()
    torch.cuda.synchronize()
    return {"launched": launched * 1e3, "pending": pending, "events": begin.elapsed_time(end)}
"""


def test_products_take_the_time_that_their_size_asks_for(run: Run) -> None:
    gpu = VirtualGpu(total_bytes=8 * GIB, gflops=19500, kernel_ns=3000)
    code = (
        TIMED
        + """
x = torch.empty(4096, 4096, device="cuda")
x @ x
report(**timed(lambda: [x @ x for _ in range(10)]))
"""
    )

    seen = run(code, gpu)

    expected = 10 * 2 * 4096**3 / 19.5e12 * 1e3
    assert seen["pending"]
    assert seen["launched"] < expected / 2
    assert seen["events"] == pytest.approx(expected, rel=0.1)


def test_copies_take_the_time_that_their_size_asks_for(run: Run) -> None:
    gpu = VirtualGpu(total_bytes=8 * GIB, copy_gbps=10)
    code = (
        TIMED
        + """
x = torch.empty(500_000_000, dtype=torch.uint8, device="cuda")
y = torch.empty_like(x)
report(**timed(lambda: y.copy_(x)))
"""
    )

    assert run(code, gpu)["events"] == pytest.approx(50, rel=0.1)


def test_by_default_work_takes_no_time(run: Run) -> None:
    code = (
        TIMED
        + """
x = torch.empty(16384, 16384, device="cuda")
x @ x
report(**timed(lambda: x @ x))
"""
    )

    assert run(code)["events"] < 50


def test_a_stream_waits_for_another(run: Run) -> None:
    gpu = VirtualGpu(total_bytes=8 * GIB, kernel_ns=20e6)
    code = (
        TIMED
        + """
side, x = torch.cuda.Stream(), torch.zeros(64, device="cuda")
torch.cuda.synchronize()

def work():
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    x.add_(1)

report(**timed(work))
"""
    )

    assert run(code, gpu)["events"] == pytest.approx(40, rel=0.2)

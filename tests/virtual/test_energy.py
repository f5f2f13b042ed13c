from __future__ import annotations

from pathlib import Path

import pytest

from autoaccum.virtual import VirtualGpu

from .conftest import GIB, Run

pytestmark = pytest.mark.gpu

START = """
import time
import pynvml as nvml
nvml.nvmlInit()
handle = nvml.nvmlDeviceGetHandleByIndex(0)

def joules(of=handle):
    return nvml.nvmlDeviceGetTotalEnergyConsumption(of) / 1e3

def watts(of=handle):
    return nvml.nvmlDeviceGetPowerUsage(of) / 1e3

x = torch.zeros(64, device="cuda")
torch.cuda.synchronize()
"""
SLOW = VirtualGpu(total_bytes=GIB, kernel_ns=200e6, idle_watts=40, busy_watts=240)


@pytest.fixture(autouse=True)
def _needs_pynvml() -> None:
    pytest.importorskip("pynvml")


def test_an_idle_device_draws_its_idle_power(run: Run) -> None:
    code = (
        START
        + """
power, before, began = watts(), joules(), time.monotonic()
time.sleep(0.5)
used, seconds = joules() - before, time.monotonic() - began
report(power=power, mean=used / seconds)
"""
    )

    seen = run(code, VirtualGpu(total_bytes=GIB, idle_watts=70))

    assert seen["power"] == 70
    assert seen["mean"] == pytest.approx(70, rel=0.1)


def test_a_busy_second_costs_the_busy_power(run: Run) -> None:
    code = (
        START
        + """
before, began = joules(), time.monotonic()
for _ in range(5):
    x.add_(1)
power = watts()
torch.cuda.synchronize()
used, seconds = joules() - before, time.monotonic() - began
report(power=power, after=watts(), seconds=seconds, used=used)
"""
    )

    seen = run(code, SLOW)

    assert (seen["power"], seen["after"]) == (240, 40)
    assert seen["seconds"] >= 1
    # What was late to begin or to be read was idle.
    assert seen["used"] == pytest.approx(240 * 1 + 40 * (seen["seconds"] - 1), rel=0.05)


def test_queued_work_costs_nothing_before_it_is_done_and_the_counter_only_grows(run: Run) -> None:
    code = (
        START
        + """
other = torch.cuda.Stream()
began, first = time.monotonic(), joules()
readings = []
for _ in range(2):
    x.add_(1)
    with torch.cuda.stream(other):  # at the same time, and counted once
        x.add_(1)
    readings.append((joules(), time.monotonic()))
while not torch.cuda.current_stream().query():
    readings.append((joules(), time.monotonic()))
time.sleep(0.1)
readings.append((joules(), time.monotonic()))
report(began=began, first=first, readings=readings)
"""
    )

    seen = run(code, SLOW)

    began, first, readings = seen["began"], seen["first"], seen["readings"]
    figures = [first, *(figure for figure, _ in readings)]
    assert len(figures) > 100
    assert figures == sorted(figures)
    assert all(figure - first <= 240 * (moment - began) + 0.01 for figure, moment in readings)
    last, ended = readings[-1]
    assert last - first == pytest.approx(240 * 0.4 + 40 * (ended - began - 0.4), rel=0.1)


def test_the_work_of_others_is_in_the_figures(run: Run, tmp_path: Path) -> None:
    code = (
        START
        + """
import subprocess, sys
worker = "import sys, torch; x = torch.zeros(64, device='cuda'); print(flush=True); sys.stdin.read(1); x.add_(1)"
worker += "; print(flush=True); torch.cuda.synchronize()"
child = subprocess.Popen([sys.executable, "-c", worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
torch.cuda.synchronize()
time.sleep(1)  # what the other did to begin with
before, began = joules(), time.monotonic()
child.stdin.write(b"x")
child.stdin.flush()
child.stdout.readline()
power = watts()
child.wait()
used, seconds = joules() - before, time.monotonic() - began
report(power=power, after=watts(), more=used - 40 * seconds)
"""
    )
    shared = VirtualGpu(total_bytes=GIB, kernel_ns=500e6, idle_watts=40, busy_watts=240, state_file=tmp_path / "state")

    seen = run(code, shared)

    assert (seen["power"], seen["after"]) == (240, 40)
    assert seen["more"] == pytest.approx(200 * 0.5, rel=0.1)


def test_each_device_has_its_own_power(run: Run) -> None:
    code = START + "report(watts=[watts(nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(2)])"

    seen = run(code, [VirtualGpu(total_bytes=GIB, idle_watts=w) for w in (30.5, 60)])

    assert seen == {"watts": [30.5, 60]}


@pytest.mark.parametrize(("way", "known"), [("no-energy", ["watts"]), ("no-power", [])])
def test_nvml_can_know_no_energy_and_no_power(run: Run, way: str, known: list[str]) -> None:
    code = (
        START
        + """
known = []
for name, query in (("joules", joules), ("watts", watts)):
    try:
        query()
    except nvml.NVMLError_NotSupported:
        continue
    known.append(name)
report(known=known, name=nvml.nvmlDeviceGetName(handle))
"""
    )

    seen = run(code, env={"AUTOACCUM_VIRTUAL_NVML": way})

    assert seen == {"known": known, "name": "autoaccum virtual GPU"}


def test_the_utilization_is_the_busy_part_of_the_time_and_no_more(run: Run) -> None:
    code = (
        START
        + """
time.sleep(0.2)
for _ in range(50):
    x.add_(1)  # ten seconds of work, of which next to nothing is done
report(busy=torch.cuda.utilization())
"""
    )

    assert run(code, SLOW)["busy"] < 100

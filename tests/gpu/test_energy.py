"""Joules of a GPU: from the counter, from the power where there is none, and unknown where there is neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from autoaccum.units import GIB
from autoaccum.virtual import VirtualGpu

from .conftest import Rig

pytestmark = pytest.mark.gpu

GPU = VirtualGpu(total_bytes=GIB, kernel_ns=100e6, idle_watts=50, busy_watts=250)
PRELUDE = """
    import json, os, threading, time
    import torch
    from autoaccum.device import open_device
    from autoaccum.device.live import open_live

    def work(device, kernels, *others):
        "What some kernels with pauses between them used: by the device, by other readings, and by the description."
        readings = device.joules, *others
        x = torch.zeros(1, device=device.torch_device)
        device.synchronize()
        began, before = time.monotonic(), [read() for read in readings]
        for _ in range(kernels):
            x.add_(1)
            device.synchronize()
            time.sleep(0.07)
        used, seconds = [read() - first for read, first in zip(readings, before)], time.monotonic() - began
        return {"used": used, "expected": 50 * seconds + 200 * 0.1 * kernels}

    def samplers():
        return sum(thread.name == "autoaccum-power" for thread in threading.enumerate())
"""

RunOn = Callable[..., Any]


@pytest.fixture
def run_on(rig: Rig) -> RunOn:
    """Run a program on a virtual GPU, where NVML behaves as told; give what it prints."""

    def run(program: str, gpu: VirtualGpu = GPU, way: str = "") -> Any:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(program)],
            env={**os.environ, **rig(gpu, AUTOACCUM_VIRTUAL_NVML=way)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_joules_come_from_the_counter(run_on: RunOn) -> None:
    seen = run_on("""
        device = open_device("cuda")
        print(json.dumps({"source": device.energy_source, "samplers": samplers(), **work(device, 5)}))
    """)

    assert (seen["source"], seen["samplers"]) == ("counter", 0)
    assert seen["used"] == pytest.approx([seen["expected"]], rel=0.05)


def test_integrated_power_agrees_with_the_counter(run_on: RunOn) -> None:
    seen = run_on(
        """
        device = open_device("cuda")
        source = device.energy_source
        del os.environ["AUTOACCUM_VIRTUAL_NVML"]  # from here on there is a counter to compare with
        found = work(device, 10, lambda: device._nvml.energy_joules(device._handle))
        print(json.dumps({"source": source, "samplers": samplers(), **found}))
        """,
        way="no-energy",
    )

    assert (seen["source"], seen["samplers"]) == ("power", 1)
    integrated, counted = seen["used"]
    assert counted == pytest.approx(seen["expected"], rel=0.05)
    assert integrated == pytest.approx(counted, rel=0.15)


@pytest.mark.parametrize("way", ["no-power", "missing"])
def test_where_nvml_tells_neither_there_are_no_joules(run_on: RunOn, way: str) -> None:
    seen = run_on(
        """
        device = open_device("cuda")
        print(json.dumps([device.energy_source, device.joules(), samplers()]))
        """,
        way=way,
    )

    assert seen == [None, None, 0]


def test_a_live_device_counts_and_its_thread_ends_with_it(run_on: RunOn) -> None:
    seen = run_on(
        """
        device = open_live(torch.device("cuda"))
        source, found = device.energy_source, work(device, 10)
        during = samplers()
        del device
        for _ in range(100):
            if not samplers():
                break
            time.sleep(0.1)
        print(json.dumps({"source": source, "samplers": [during, samplers()], **found}))
        """,
        way="no-energy",
    )

    assert (seen["source"], seen["samplers"]) == ("power", [1, 0])
    assert seen["used"] == pytest.approx([seen["expected"]], rel=0.15)


@pytest.mark.parametrize(("gflops", "source"), [(0.0, None), (100.0, "counter")])
def test_a_virtual_gpu_has_energy_only_with_simulated_time(run_on: RunOn, gflops: float, source: str | None) -> None:
    seen = run_on(
        """
        for device in open_device("virtual:1GiB"), open_live(torch.device("cuda")):
            assert (device.joules() is None) == (device.energy_source is None)
        print(json.dumps(device.energy_source))
        """,
        gpu=VirtualGpu(total_bytes=GIB, gflops=gflops),
    )

    assert seen == source

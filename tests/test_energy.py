"""Joules without a GPU: the driver's answers are made up, the meter and its thread are real."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pynvml
import pytest

from autoaccum.device import energy
from autoaccum.device.cpu import CpuDevice
from autoaccum.device.energy import EnergyMeter
from autoaccum.device.nvml import Nvml

MeterOf = Callable[..., EnergyMeter]


@pytest.fixture
def meter_of(monkeypatch: pytest.MonkeyPatch) -> MeterOf:
    """Give the meter of a device that answers these watts and joules, by functions; None is a refusal."""

    def answer(figure: Callable[[], float | None]) -> Callable[[str], int]:
        def ask(handle: str) -> int:
            value = figure() if handle == "gpu" else None
            if value is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return int(value * 1000)

        return ask

    def meter(
        watts: Callable[[], float | None] = lambda: None,
        joules: Callable[[], float | None] = lambda: None,
        handle: str | None = "gpu",
    ) -> EnergyMeter:
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", answer(watts))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", answer(joules))
        return EnergyMeter(Nvml(), handle)

    return meter


def samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "autoaccum-power"]


def test_a_counter_is_read_as_it_is_and_needs_no_thread(meter_of: MeterOf) -> None:
    figures = iter([100.0, 100.5, 123.25])  # the first is the question whether there is one
    meter = meter_of(watts=lambda: 50.0, joules=lambda: next(figures))

    assert meter.source == "counter"
    assert [meter.joules(), meter.joules()] == [100.5, 123.25]
    assert samplers() == []


def test_without_a_counter_the_power_is_integrated_between_readings(meter_of: MeterOf) -> None:
    began = time.monotonic()
    meter = meter_of(watts=lambda: max(0.0, 300 - 1000 * abs(time.monotonic() - began - 0.3)))

    assert meter.source == "power"
    before = meter.joules()
    time.sleep(0.7)
    after = meter.joules()
    meter.close()

    # A triangle: nothing at the readings themselves, 300 W between them.
    assert before == 0
    assert after == pytest.approx(300 * 0.6 / 2, rel=0.1)


def test_a_reading_brings_the_integral_up_to_now(meter_of: MeterOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_PERIOD_SECONDS", 60.0)
    meter = meter_of(watts=lambda: 100.0)

    assert meter.joules() == 0
    began = time.monotonic()
    time.sleep(0.2)
    used, seconds = meter.joules(), time.monotonic() - began
    meter.close()

    assert used == pytest.approx(100 * seconds, rel=0.1)


def test_the_thread_begins_with_the_first_reading_and_ends_with_close(meter_of: MeterOf) -> None:
    meter = meter_of(watts=lambda: 100.0)
    assert samplers() == []

    meter.joules()
    meter.joules()
    assert len(samplers()) == 1

    meter.close()
    assert samplers() == []
    assert meter.joules() is None
    assert samplers() == []


def test_the_thread_ends_with_a_meter_that_nobody_closed(meter_of: MeterOf) -> None:
    meter = meter_of(watts=lambda: 100.0)
    meter.joules()
    (thread,) = samplers()

    del meter
    gc.collect()
    thread.join(timeout=30)

    assert not thread.is_alive()


def test_readings_of_several_threads_only_grow(meter_of: MeterOf, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> float:
        now = time.monotonic()
        time.sleep(random.uniform(0, 0.002))  # other threads come in between, and leave before
        return now

    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=interrupted))
    meter = meter_of(watts=lambda: random.choice((0.0, 1000.0)))
    seen: list[list[float]] = [[] for _ in range(4)]

    def read(mine: list[float]) -> None:
        for _ in range(50):
            mine.append(meter.joules() or 0.0)

    readers = [threading.Thread(target=read, args=(mine,)) for mine in seen]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    meter.close()

    assert all(mine == sorted(mine) for mine in seen)


def test_a_refused_reading_is_unknown_and_the_next_one_bridges_it(meter_of: MeterOf) -> None:
    refused = threading.Event()
    meter = meter_of(watts=lambda: None if refused.is_set() else 100.0)
    began = time.monotonic()
    meter.joules()

    refused.set()
    time.sleep(0.2)
    assert meter.joules() is None
    refused.clear()
    used, seconds = meter.joules(), time.monotonic() - began
    meter.close()

    assert used == pytest.approx(100 * seconds, rel=0.1)


@pytest.mark.parametrize("handle", ["gpu", "a MIG slice", None])
def test_a_device_that_tells_nothing_has_no_energy_and_no_thread(meter_of: MeterOf, handle: str | None) -> None:
    meter = meter_of(watts=lambda: None if handle == "gpu" else 100.0, handle=handle)

    assert meter.source is None
    assert meter.joules() is None
    assert samplers() == []
    meter.close()


def test_nothing_counts_the_energy_of_the_cpu() -> None:
    device = CpuDevice()

    assert (device.energy_source, device.joules()) == (None, None)

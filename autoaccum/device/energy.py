"""The energy that a GPU uses: its own counter where there is one, else its power, summed up over time."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from autoaccum.device.nvml import Nvml

_PERIOD_SECONDS = 0.025


class EnergyMeter:
    """Counts the joules of a whole GPU: what it draws when idle and what other tenants make it draw are in them.

    `source` says where they come from: "counter" is the driver's own (Volta and later), "power" is its power meter,
    read by a thread from the first `joules` on, and None is a device that tells neither, as a MIG slice. The power
    meter may be slow: since Ampere, the A100 excepted, it gives the mean over the last second.
    """

    def __init__(self, nvml: Nvml, handle: Any | None) -> None:
        self.source: str | None = None
        self._read: Callable[[], float | None] = _nothing
        self._end = _nothing
        if handle is None:
            return
        if nvml.energy_joules(handle) is not None:
            self.source, self._read = "counter", lambda: nvml.energy_joules(handle)
        elif nvml.power_watts(handle) is not None:
            power = _Power(lambda: nvml.power_watts(handle))
            self.source, self._read, self._end = "power", power.joules, power.close
            # Whoever forgets to close: the thread does not know this object, and ends with it.
            weakref.finalize(self, power.closed.set)

    def joules(self) -> float | None:
        """Give a figure that only grows, so that two of them tell what was used in between; None if unknown."""
        return self._read()

    def close(self) -> None:
        """End the thread, if there is one; the power is unknown from then on."""
        self._end()


class _Power:
    """The integral of a power by trapezoids, which a thread keeps fine and each reading brings up to now."""

    def __init__(self, watts: Callable[[], float | None]) -> None:
        self.closed = threading.Event()
        self._watts = watts
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._joules = 0.0
        self._last: tuple[float, float] | None = None  # seconds and watts

    def joules(self) -> float | None:
        if self.closed.is_set():
            return None
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._sample, name="autoaccum-power", daemon=True)
                self._thread.start()
        return self._advance()

    def close(self) -> None:
        self.closed.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        while not self.closed.wait(_PERIOD_SECONDS):
            self._advance()

    def _advance(self) -> float | None:
        """Add what was used since the last sample; one that the driver refuses is bridged by the next."""
        with self._lock:
            watts, now = self._watts(), time.monotonic()
            if watts is None:
                return None
            if self._last is not None:
                then, before = self._last
                self._joules += (now - then) * (before + watts) / 2
            self._last = now, watts
            return self._joules


def _nothing() -> None:
    return None

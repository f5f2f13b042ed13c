"""The protocol of a device, and the budget that all devices share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from autoaccum.records import Budget, DeviceInfo
from autoaccum.units import format_bytes, parse_budget

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Peaks since `Device.reset`."""

    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int  # reserved, and what the process holds besides
    retries: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What an update cannot do without, as far as an allocator's history tells: see history.py."""

    base_bytes: int  # live as it began
    firm_bytes: int
    scratch_bytes: int  # at the most, beyond `firm_bytes`
    held_bytes: int
    step_bytes: int  # held in the optimizer's step


class Recorder:
    """Is told what an update is doing, and says afterwards what it needed; one that records nothing says None."""

    def __init__(self) -> None:
        self.needs: Needs | None = None

    def step_begins(self) -> None:
        """The optimizer's step comes next, and nothing else after it."""


class Device(Protocol):
    """A place where training runs: what it is, what it allows, how its memory is read and limited."""

    torch_device: torch.device
    warnings: list[str]
    default_share: float  # of the free memory, when no budget is given
    timed: bool  # whether a clock says anything about it

    @property
    def energy_source(self) -> str | None:
        """Say where `joules` come from: "counter", "power", or None where there are none."""

    def describe(self) -> DeviceInfo:
        """Say what the device is and what is free on it for this process."""

    def limited(self, limit_bytes: int) -> AbstractContextManager[None]:
        """See that this process cannot hold more than `limit_bytes` on the device, all in all, for a while."""

    def meter_exactly(self) -> None:
        """Trade some speed for an exact peak, where a device needs that."""

    def reset(self) -> None:
        """Forget the peaks so far."""

    def read(self) -> Reading:
        """Give the peaks since the last reset."""

    def allocated_bytes(self) -> int:
        """Give what is allocated now, as `read` counts it."""

    def recorded(self) -> AbstractContextManager[Recorder]:
        """Look at the memory of one update more closely, where a device can."""

    def joules(self) -> float | None:
        """Give a counter of the energy that the device has used; None where it does not tell."""

    def synchronize(self) -> None:
        """Wait until all work is done, so that a clock can be read."""

    def stamp(self) -> Any:
        """Mark this moment of the device's work, without waiting for it."""

    def seconds_between(self, start: Any, end: Any) -> float:
        """Give the time from one stamp to a later one, once the work is done."""

    def release(self) -> None:
        """Give back what is cached and unused."""


def budget_for(device: Device, info: DeviceInfo, asked: str | None) -> Budget:
    """Give the budget on `device`: what was asked for, or the free memory less a reserve.

    More than is free cannot be promised, so it is capped, and a warning says so.
    """
    if asked is None:
        reserve = info.free_bytes - int(info.free_bytes * device.default_share)
        return Budget(limit_bytes=info.free_bytes - reserve, reserve_bytes=reserve, source="free")
    wanted = parse_budget(asked, info.total_bytes)
    if wanted <= info.free_bytes:
        return Budget(limit_bytes=wanted, reserve_bytes=0, source="user")
    device.warnings.append(
        f"the budget of {format_bytes(wanted)} is more than is free ({format_bytes(info.free_bytes)}): "
        f"the plan is for what is free now"
    )
    return Budget(limit_bytes=info.free_bytes, reserve_bytes=0, source="capped")

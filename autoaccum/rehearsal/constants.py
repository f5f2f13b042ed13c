"""What a process holds on a card besides torch's memory: the CUDA context, and the code of its libraries.

No virtual GPU can know it, so it is a constant that a rehearsal adds. Each probe on a real GPU shows it, and leaves it
in the user's cache for the rehearsals to come; for a card that was never probed here there is a default, with a wide
band. docs/rehearse-constants.md says where the figures below come from.

>>> constant_for("NVIDIA L4", {"torch": "2.15.0", "cuda": "13.2"}).source
'measured on this machine 2026-11-18 with torch 2.15.0'
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from autoaccum.records import DeviceInfo, Record, Sample
from autoaccum.units import MIB, format_bytes
from autoaccum.virtual.build import cache_root

__all__ = ["DEFAULT", "Constant", "constant_for", "remember"]

FILE = "constants.json"
_OTHER_PROGRAMS_BYTES = 64 * MIB  # by so much programs differ, on the same card and with the same torch
_OTHER_TORCH = 0.2  # by so large a share releases of torch differ


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant(Record):
    """What a process holds besides torch's memory, and between which bounds that is known."""

    typical_bytes: int
    low_bytes: int
    high_bytes: int
    source: str

    @property
    def words(self) -> str:
        """The constant in a sentence."""
        typical, low, high = map(format_bytes, (self.typical_bytes, self.low_bytes, self.high_bytes))
        return f"{typical} ({low} to {high}), {self.source}"


DEFAULT = Constant(
    typical_bytes=480 * MIB,
    low_bytes=128 * MIB,
    high_bytes=1844 * MIB,  # 1.8 GiB
    source="default: this card was never probed on this machine",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured(Record):
    """What one probe showed; a row of the file."""

    card: str
    torch: str
    cuda: str
    driver: str
    date: str
    constant_bytes: int

    @property
    def key(self) -> tuple[str, str, str]:
        """What the constant depends on: the card, torch up to its minor version, and CUDA."""
        return self.card, ".".join(self.torch.split(".")[:2]), self.cuda


def remember(device: DeviceInfo, samples: Sequence[Sample], environment: Mapping[str, Any]) -> None:
    """Keep what a probe on a real GPU showed; silently nothing where NVML told nothing, or nothing can be written."""
    held = [(s.device_used_bytes or 0) - (s.peak_reserved_bytes or 0) for s in samples if s.ok]
    largest = max(held, default=0)
    if device.kind != "cuda" or not device.overhead_told or largest <= 0:
        return
    new = _measured(device.name, environment, largest)
    with suppress(OSError, RuntimeError):  # a home that cannot be told is a RuntimeError
        path = cache_root() / FILE
        _write(path, [*(each for each in _read(path) if each.key != new.key), new])


def constant_for(card_name: str, environment: Mapping[str, Any]) -> Constant:
    """Give the constant of the card that the driver calls so, for the torch and CUDA of `environment`."""
    known = [each for each in _kept() if each.card == card_name]
    if not known:
        return DEFAULT
    same = [each for each in known if each.key == _measured(card_name, environment, 0).key]
    best = max(reversed(same or known), key=lambda each: each.date)
    typical, band = best.constant_bytes, _OTHER_PROGRAMS_BYTES
    if not same:
        band = max(band, round(_OTHER_TORCH * typical))
    return Constant(
        typical_bytes=typical,
        low_bytes=max(0, typical - band),
        high_bytes=typical + band,
        source=f"measured on this machine {best.date} with torch {best.torch}",
    )


def _measured(card: str, environment: Mapping[str, Any], constant_bytes: int) -> _Measured:
    return _Measured(
        card=card,
        torch=str(environment.get("torch")).partition("+")[0],  # what follows names the build, as CUDA does
        cuda=str(environment.get("cuda")),
        driver=str(environment.get("driver")),
        date=datetime.now().date().isoformat(),
        constant_bytes=constant_bytes,
    )


def _kept() -> list[_Measured]:
    with suppress(RuntimeError):
        return _read(cache_root() / FILE)
    return []


def _read(path: Path) -> list[_Measured]:
    """Give what the file holds; rows that are not ours, and a file that is not, are nothing."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["constants"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []
    found = []
    for row in rows if isinstance(rows, list) else []:
        with suppress(TypeError, AttributeError):
            found.append(_Measured.from_dict(row))
    return [each for each in found if each.constant_bytes > 0]


def _write(path: Path, rows: Sequence[_Measured]) -> None:
    """Write beside the file, then put it in its place: of two that do so at once, one file is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    partial = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump({"constants": [row.to_dict() for row in rows]}, file, indent=2)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

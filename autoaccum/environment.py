"""`autoaccum env`: what a worker finds on this machine, and the versions of what we stand on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from typing import Any

from autoaccum import device as devices
from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.units import format_bytes

_PACKAGES = ("optuna", "pandas", "click", "rich", "nvidia-ml-py")


def describe(device: str = "auto") -> dict[str, Any]:
    """Start a worker, and give what it says of itself and its device."""
    devices.check_name(device)
    with Worker(WorkerSpec(device=device), timeout_seconds=60.0) as worker:
        ready = worker.ready
    budget = None if ready.budget is None else asdict(ready.budget)
    return {
        "device": asdict(ready.device),
        "budget": budget,
        "environment": {**ready.environment, **{name: _version(name) for name in _PACKAGES}},
        "warnings": list(ready.warnings),
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Give what `describe` found, a fact on each line."""
    device = found["device"]
    yield f"{'device':<16}{device['kind']}  {device['name']}" + (f"  {device['uuid']}" if device["uuid"] else "")
    yield f"{'memory':<16}{format_bytes(device['free_bytes'])} free of {format_bytes(device['total_bytes'])}"
    yield f"{'default budget':<16}{format_bytes(found['budget']['limit_bytes'])}"
    yield f"{'overhead':<16}{format_bytes(device['overhead_bytes'])} before there is a model"
    for name, value in found["environment"].items():
        yield f"{name:<16}{'-' if value is None else value}"
    for warning in found["warnings"]:
        yield f"{'warning':<16}{warning}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

"""What a container allows: the memory limits of control groups, versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")
_UNLIMITED = 1 << 60  # version 1 writes a huge number where there is no limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """One limit that holds for this process, and what is used of it."""

    limit_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """What is left of it."""
        return max(0, self.limit_bytes - self.used_bytes)


def allowances(proc: Path = Path("/proc"), sys: Path = Path("/sys/fs/cgroup")) -> list[Allowance]:
    """Give every memory limit between this process and the root of its control groups."""
    return [
        Allowance(limit_bytes=limit, used_bytes=_used(folder, *names[1:]))
        for folder, *names in _folders(proc, sys)
        if (limit := _number(folder / names[0])) is not None and limit < _UNLIMITED
    ]


def _folders(proc: Path, sys: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Give the folders that speak for this process, with the names of limit, usage and cache in them."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mounts, names = [sys, sys / "unified"], _V2
        elif "memory" in controllers.split(","):
            mounts, names = [sys / "memory"], _V1
        else:
            continue
        relative = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            # Inside a container the path may be the host's; then only the mount itself is ours.
            for part in (relative, *relative.parents):
                yield (mount / part, *names)


def _used(folder: Path, usage: str, cache: str) -> int:
    """Give the usage less the file cache that the kernel drops when memory is short."""
    used = _number(folder / usage) or 0
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return used
    for line in lines:
        key, _, value = line.partition(" ")
        if key == cache:
            return max(0, used - int(value))
    return used


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # version 2 writes "max"

"""Sizes and names as people write them: "20GiB" or "80%" to bytes and back, and what a mistyped name was to be.

>>> parse_bytes("1.5GiB")
1610612736
>>> parse_bytes("20GB")
20000000000
>>> format_bytes(1610612736)
'1.50 GiB'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from autoaccum.errors import UsageError

MIB = 1 << 20
GIB = 1 << 30

_FACTORS = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_NAMES = ("B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


def parse_bytes(text: str) -> int:
    """Give the number of bytes that `text` ("20GiB", "20GB", "512 MiB") stands for."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f'"{text}" is not a size: write a number and a unit, such as 20GiB, 512MiB or 20GB')
    number, unit = match.groups()
    factor = _FACTORS.get(unit.lower())
    if factor is None:
        raise UsageError(f'"{text}" has the unknown unit "{unit}": use one of {", ".join(_NAMES)}, or %')
    size = int(float(number) * factor)
    if size <= 0:
        raise UsageError(f'"{text}" is no memory at all: give a size above zero')
    return size


def parse_budget(text: str, total_bytes: int) -> int:
    """Give the bytes of a budget: a size, or a share ("80%") of `total_bytes`."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        return parse_bytes(text)
    share = float(match.group(1))
    if not 0 < share <= 100:
        raise UsageError(f'"{text}" is not a share of the device: give more than 0% and at most 100%')
    return int(total_bytes * share / 100)


def format_bytes(size: float) -> str:
    """Give `size` as people read it: three digits and a binary unit."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", 1 << 10)):
        if abs(size) >= factor:
            value = size / factor
            return f"{value:.2f} {unit}" if abs(value) < 10 else f"{value:.1f} {unit}"
    return f"{size:.0f} B"


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Give the question to ask after a name that is not known, with a space after it; "" where none is near.

    >>> did_you_mean("evn", ("auto", "even"))
    'did you mean even? '
    """
    close = get_close_matches(text.lower(), list(known), n=1, cutoff=0.7)  # who writes tpu does not mean cpu
    return f"did you mean {close[0]}? " if close else ""


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Give `value` back where it is a whole number of `least` or more; else raise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be a whole number of {least} or more, not {value!r}")
    return value


def choice(what: str, text: str, known: tuple[str, ...]) -> str:
    """Give `text` back where it is one of the known names; else raise, with the names."""
    if text not in known:
        near = did_you_mean(text, known) if isinstance(text, str) else ""
        raise UsageError(f'unknown {what} "{text}": {near}use {", ".join(known[:-1])} or {known[-1]}')
    return text

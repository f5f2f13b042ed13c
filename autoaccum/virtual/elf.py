"""Reads what a shared library needs from others, so that neither `nm` nor `readelf` has to be installed.

Only what the build asks for: 64-bit little-endian files, their DT_NEEDED and DT_SONAME entries, and their
undefined symbols with the version and the library that each is bound to.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Section types of the ELF specification.
_DYNAMIC, _DYNSYM, _GNU_VERNEED, _GNU_VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
# Tags of the dynamic section.
_DT_NULL, _DT_NEEDED, _DT_SONAME = 0, 1, 14

_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_TAG = struct.Struct("<QQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NEED = struct.Struct("<HHIII")  # version, count, file, first entry, next
_NEED_ENTRY = struct.Struct("<IHHII")  # hash, flags, index, name, next


class Symbol(NamedTuple):
    """A symbol expected from elsewhere; version and library are empty where it is not versioned."""

    name: str
    version: str
    library: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Dynamic:
    """What the dynamic linker reads of one shared library."""

    soname: str
    needed: tuple[str, ...]
    undefined: tuple[Symbol, ...]


class NotElf(ValueError):  # noqa: N818  (a statement about the file)
    """The file is not a 64-bit little-endian ELF file."""


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int  # for our kinds: the index of the string table


class _File:
    def __init__(self, data: mmap.mmap) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise NotElf("not a 64-bit little-endian ELF file")
        self._data = data
        table, size, count = *struct.unpack_from("<Q", data, 0x28), *struct.unpack_from("<HH", data, 0x3A)
        fields = (_SECTION.unpack_from(data, table + i * size) for i in range(count))
        self._sections = [_Section(f[1], f[4], f[5], f[6]) for f in fields]

    def section(self, kind: int) -> _Section | None:
        return next((s for s in self._sections if s.kind == kind), None)

    def bytes_of(self, section: _Section) -> bytes:
        return self._data[section.offset : section.offset + section.size]

    def text(self, section: _Section, offset: int) -> str:
        start = self._sections[section.link].offset + offset
        return self._data[start : self._data.find(b"\0", start)].decode()

    def tags(self) -> Iterator[tuple[int, str]]:
        dynamic = self.section(_DYNAMIC)
        if dynamic is None:
            return
        for tag, value in _TAG.iter_unpack(self.bytes_of(dynamic)):
            if tag == _DT_NULL:
                return
            if tag in (_DT_NEEDED, _DT_SONAME):
                yield tag, self.text(dynamic, value)

    def versions(self) -> dict[int, tuple[str, str]]:
        """Give (version, library) by the index that .gnu.version uses."""
        found: dict[int, tuple[str, str]] = {}
        section = self.section(_GNU_VERNEED)
        if section is None:
            return found
        data, need = self.bytes_of(section), 0
        while True:
            _, count, library, first, following = _NEED.unpack_from(data, need)
            entry = need + first
            for _ in range(count):
                _, _, index, name, step = _NEED_ENTRY.unpack_from(data, entry)
                found[index] = (self.text(section, name), self.text(section, library))
                entry += step
            if not following:
                return found
            need += following

    def undefined(self) -> Iterator[Symbol]:
        symbols, versym = self.section(_DYNSYM), self.section(_GNU_VERSYM)
        if symbols is None:
            return
        versions = self.versions()
        entries = list(_SYMBOL.iter_unpack(self.bytes_of(symbols)))
        indices = struct.unpack(f"<{len(entries)}H", self.bytes_of(versym)) if versym else (0,) * len(entries)
        for (name, _, _, section, _, _), index in zip(entries, indices, strict=True):
            if name and section == 0:
                yield Symbol(self.text(symbols, name), *versions.get(index & 0x7FFF, ("", "")))


def read(path: Path) -> Dynamic:
    """Give what the shared library at `path` needs; `NotElf` if it is none, or not whole."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _dynamic(_File(data))
    except (struct.error, IndexError, ValueError) as error:
        raise NotElf(f"{path} is not a whole shared library") from error


def _dynamic(elf: _File) -> Dynamic:
    tags = list(elf.tags())
    return Dynamic(
        soname=next((text for tag, text in tags if tag == _DT_SONAME), ""),
        needed=tuple(text for tag, text in tags if tag == _DT_NEEDED),
        undefined=tuple(elf.undefined()),
    )

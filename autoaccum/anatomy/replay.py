"""The allocator's history, played once more: which blocks are there when most memory is in use.

Moments are counted in allocations, the one clock that the history and a running program have in common: the
allocator's own counter of them moves with each "alloc" of the history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Sighting = tuple[int, int, str]  # after so many allocations, at this address, there was this kind of tensor


@dataclass(kw_only=True, slots=True)
class Block:
    """Memory from when it was asked for to when it was given back."""

    size_bytes: int  # as asked for
    number: int  # of the allocation, counted from 1; 0 for what was there before
    kinds: set[str]  # of the tensors that were seen in it
    freed_at: int | None = None  # a place in the history; None: it is still there at the end


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The moment when most memory was in use."""

    number: int  # of the last allocation before it
    blocks: tuple[Block, ...]


def there_before(segments: Iterable[Mapping[str, Any]], device: int) -> dict[int, int]:
    """Give the address and the size of what a snapshot says is in use."""
    blocks = [block for segment in segments if segment["device"] == device for block in segment["blocks"]]
    return {block["address"]: block["requested_size"] for block in blocks if block["state"] == "active_allocated"}


def allocations(history: Iterable[Mapping[str, Any]]) -> int:
    """Count the allocations of a history."""
    return sum(event["action"] == "alloc" for event in history)


def find_peak(before: Mapping[int, int], history: Sequence[Mapping[str, Any]], sightings: Iterable[Sighting]) -> Peak:
    """Give the peak of a history that began with `before` in use."""
    seen = defaultdict(list)
    for number, address, kind in sightings:
        seen[number].append((address, kind))
    play = _Play(before)
    play.recognise(seen[0])
    for place, event in enumerate(history):
        if event["action"] == "alloc":
            play.take(place, event["addr"], event["size"])
            # At once: a tensor that was seen before the next allocation may be given back before it too.
            play.recognise(seen[play.number])
        elif event["action"] == "free_requested":
            play.give_back(place, event["addr"])
    return play.peak()


class _Play:
    """What is in use while the history goes by, and when that was most."""

    def __init__(self, before: Mapping[int, int]) -> None:
        self.number = 0  # of allocations so far
        self._live = {address: Block(size_bytes=size, number=0, kinds=set()) for address, size in before.items()}
        self._blocks = list(self._live.values())
        self._used = self._most = sum(before.values())
        self._at_most = -1, 0  # the place in the history, and the allocation

    def take(self, place: int, address: int, size_bytes: int) -> None:
        self.number += 1
        self._live[address] = Block(size_bytes=size_bytes, number=self.number, kinds=set())
        self._blocks.append(self._live[address])
        self._used += size_bytes
        if self._used > self._most:
            self._most, self._at_most = self._used, (place, self.number)

    def give_back(self, place: int, address: int) -> None:
        if address in self._live:
            block = self._live.pop(address)
            block.freed_at = place
            self._used -= block.size_bytes

    def recognise(self, seen: Iterable[tuple[int, str]]) -> None:
        for address, kind in seen:
            if address in self._live:
                self._live[address].kinds.add(kind)

    def peak(self) -> Peak:
        place, number = self._at_most
        made = (block for block in self._blocks if block.number <= number)
        return Peak(number=number, blocks=tuple(b for b in made if b.freed_at is None or b.freed_at > place))

"""What a size cannot do without, from the history of CUDA's allocator while an update runs.

The peak of reserved memory says what the allocator took where nothing pressed it. Near the limit it gets along with
less: it gives unused segments back to the driver, and a convolution does without its workspace. So three figures
are read off the history besides, all of the time outside of the optimizer's step:

    firm    the live tensors at their most, without scratch: blocks that are given back before anything else is
            asked for. Less than this no layout can do with, and it grows along a line with the size.
    scratch what was live besides at the most, in such blocks.
    held    the segments that hold anything but scratch, at their most: what could not be given back.
"""

from __future__ import annotations

import sys
from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from autoaccum.device.base import Needs, Recorder

Event = Mapping[str, Any]


class CudaRecorder(Recorder):
    """Notes where the optimizer's step begins, by the number of allocations before it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.began = self.allocations()
        self.step_at: int | None = None

    def step_begins(self) -> None:
        """Note the moment."""
        self.step_at = self.allocations() - self.began

    def allocations(self) -> int:
        """Count the allocations of the process so far."""
        return int(torch.cuda.memory_stats_as_nested_dict(self._device)["allocation"]["all"]["allocated"])


@contextmanager
def recorded(device: torch.device) -> Iterator[Recorder]:
    """Record the allocator's history within, for `Recorder.needs`; not where somebody else records one."""
    if torch.cuda.get_allocator_backend() != "native" or _is_recording():
        yield Recorder()
        return
    record: Any = torch.cuda.memory._record_memory_history
    record("all", context=None, stacks="python", max_entries=sys.maxsize)
    try:
        before = _snapshot()
        recorder = CudaRecorder(device)
        yield recorder
        made = recorder.allocations() - recorder.began
        history = _snapshot()["device_traces"][device.index][len(before["device_traces"][device.index]) :]
        with suppress(LookupError):  # a history of another shape says nothing
            if made != sum(event["action"] == "alloc" for event in history):
                raise LookupError("some of it is missing")
            segments = [segment for segment in before["segments"] if segment["device"] == device.index]
            recorder.needs = needs(segments, history, made if recorder.step_at is None else recorder.step_at)
    finally:
        record(None)


def needs(segments: Sequence[Mapping[str, Any]], history: Sequence[Event], step_at: int) -> Needs | None:
    """Play the history once more; None where segments grow, for then all of them are given back piece by piece."""
    if any(segment.get("is_expandable") for segment in segments):
        return None
    play = _Play(segments)
    base = play.firm_bytes
    number = firm = loose = held = held_in_step = 0
    for place, event in enumerate(history):
        action = event["action"]
        if action == "segment_map":  # of an expandable segment
            return None
        if action == "segment_alloc":
            play.add(event["addr"], event["size"])
        elif action == "segment_free":
            play.remove(event["addr"])
        elif action == "alloc":
            scratch = event["size"] if _is_scratch(history, place) else 0
            if not scratch:
                play.take(event["addr"], event["size"])
            if number < step_at:
                firm, held = max(firm, play.firm_bytes), max(held, play.held_bytes)
                loose = max(loose, play.firm_bytes + scratch)
            else:
                held_in_step = max(held_in_step, play.held_bytes)
            number += 1
        elif action == "free_completed":
            play.give_back(event["addr"])
    return Needs(base_bytes=base, firm_bytes=firm, scratch_bytes=loose - firm, held_bytes=held, step_bytes=held_in_step)


def _is_scratch(history: Sequence[Event], place: int) -> bool:
    """Whether the block that is asked for here is given back before anything else is asked for."""
    for event in history[place + 1 : place + 3]:
        if event["action"] == "alloc":
            return False
        if event["action"] == "free_requested":
            return bool(event["addr"] == history[place]["addr"])
    return False


class _Play:
    """Segments and what is in them, while the history goes by."""

    def __init__(self, segments: Sequence[Mapping[str, Any]]) -> None:
        self.firm_bytes = self.held_bytes = 0
        self._sizes: dict[int, int] = {}
        self._blocks_in: dict[int, int] = {}  # how many each segment holds
        self._starts: list[int] = []
        self._blocks: dict[int, tuple[int, int]] = {}  # the segment and the size of each
        for segment in segments:
            self.add(segment["address"], segment["total_size"])
            for block in segment["blocks"]:
                if block["state"] != "inactive":
                    self.take(block["address"], block["requested_size"])

    def add(self, address: int, size_bytes: int) -> None:
        self._sizes[address], self._blocks_in[address] = size_bytes, 0
        insort(self._starts, address)

    def remove(self, address: int) -> None:
        if address in self._sizes:
            del self._sizes[address], self._blocks_in[address]
            self._starts.remove(address)

    def take(self, address: int, size_bytes: int) -> None:
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            raise LookupError("a block in no segment")
        segment = self._starts[place]
        self._blocks[address] = segment, size_bytes
        self.firm_bytes += size_bytes
        if not self._blocks_in[segment]:
            self.held_bytes += self._sizes[segment]
        self._blocks_in[segment] += 1

    def give_back(self, address: int) -> None:
        if address not in self._blocks:
            return
        segment, size_bytes = self._blocks.pop(address)
        self.firm_bytes -= size_bytes
        self._blocks_in[segment] -= 1
        if not self._blocks_in[segment]:
            self.held_bytes -= self._sizes[segment]


def _is_recording() -> bool:
    """Whether somebody records a history already; a torch that does not tell is left alone."""
    tell = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return tell is None or bool(tell())


def _snapshot() -> dict[str, Any]:
    take: Any = torch.cuda.memory._snapshot
    return dict(take())

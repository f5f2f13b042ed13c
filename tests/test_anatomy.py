"""The parts of taking memory apart that need no GPU: the history played once more, and what modules are called."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autoaccum.anatomy.labels import labels_of
from autoaccum.anatomy.record import LARGEST, Part, largest
from autoaccum.anatomy.replay import Peak, allocations, find_peak, there_before
from autoaccum.isolate import WorkerSpec
from autoaccum.lab import WorkerLab
from autoaccum.records import Request, Trial
from autoaccum.report.files import write_json
from autoaccum.report.record import Status
from autoaccum.watching import Silent
from tests.conftest import Cli, WriteWorkload
from tests.reports import without_plan

Event = dict[str, Any]


def take(address: int, size: int) -> Event:
    return {"action": "alloc", "addr": address, "size": size}


def give(address: int, size: int = 0) -> Event:
    return {"action": "free_requested", "addr": address, "size": size}


def sizes(peak: Peak) -> list[int]:
    return [block.size_bytes for block in peak.blocks]


# replay


def test_the_peak_has_what_is_in_use_when_that_is_most() -> None:
    history = [take(1, 10), take(2, 20), give(1), take(3, 5), give(2), take(4, 15)]

    peak = find_peak({}, history, [])

    assert (peak.number, sizes(peak)) == (2, [10, 20])


def test_what_was_there_before_counts_until_it_is_given_back() -> None:
    history = [take(1, 10), give(7), take(2, 25)]

    peak = find_peak({7: 20, 8: 1}, history, [])

    assert (peak.number, sizes(peak)) == (2, [1, 10, 25])


def test_a_peak_before_the_first_allocation_has_number_0() -> None:
    peak = find_peak({7: 20}, [give(7), take(1, 10)], [])

    assert (peak.number, sizes(peak)) == (0, [20])


def test_of_equal_peaks_the_first_counts() -> None:
    peak = find_peak({}, [take(1, 10), give(1), take(2, 10)], [])

    assert peak.number == 1


def test_an_address_that_is_taken_twice_is_two_blocks_and_a_sighting_is_of_the_one_of_its_time() -> None:
    history = [take(1, 10), give(1), take(1, 30), take(2, 5)]

    peak = find_peak({}, history, [(1, 1, "gradient"), (3, 2, "optimizer")])

    assert [(block.size_bytes, block.kinds) for block in peak.blocks] == [(30, set()), (5, {"optimizer"})]


def test_a_tensor_that_is_seen_later_is_known_at_the_peak() -> None:
    history = [take(1, 10), take(2, 90), give(2), take(3, 1)]

    peak = find_peak({}, history, [(3, 1, "gradient")])

    assert [block.kinds for block in peak.blocks] == [{"gradient"}, set()]


def test_a_tensor_is_known_that_was_seen_and_given_back_before_the_next_allocation() -> None:
    peak = find_peak({}, [take(1, 10), give(1), take(2, 1)], [(1, 1, "gradient")])

    assert peak.blocks[0].kinds == {"gradient"}


def test_what_is_never_given_back_can_be_told_from_what_is() -> None:
    peak = find_peak({}, [take(1, 10), take(2, 20), give(2)], [])

    assert [block.freed_at for block in peak.blocks] == [None, 2]


@pytest.mark.parametrize("seed", range(20))
def test_a_history_played_once_more_has_the_peak_that_it_had(seed: int) -> None:
    chance = random.Random(seed)
    live = {-number: chance.randrange(1, 100) for number in range(1, 4)}
    before, history, most = dict(live), [], sum(live.values())
    for _ in range(200):
        if live and chance.random() < 0.5:
            address = chance.choice(list(live))
            history.append(give(address, live.pop(address)))
        else:
            address = chance.choice([each for each in range(50) if each not in live])  # soon taken again
            live[address] = chance.randrange(1, 100)
            history.append(take(address, live[address]))
        most = max(most, sum(live.values()))

    assert sum(sizes(find_peak(before, history, []))) == most


def test_only_blocks_of_the_device_that_are_in_use_were_there_before() -> None:
    def block(address: int, state: str) -> dict[str, Any]:
        return {"address": address, "requested_size": 100 + address, "size": 512, "state": state}

    states = ("active_allocated", "inactive", "active_pending_free")
    blocks = [block(address, state) for address, state in enumerate(states)]

    found = there_before([{"device": 0, "blocks": blocks}, {"device": 1, "blocks": [block(9, states[0])]}], 0)

    assert found == {0: 100}


def test_only_allocations_are_counted() -> None:
    others = [{"action": action, "addr": 1, "size": 1} for action in ("segment_alloc", "free_completed", "snapshot")]

    assert allocations([*others, take(1, 1), give(1), take(1, 1)]) == 2


# labels


def names(model: nn.Module) -> dict[str, str]:
    return {label.name: label.shown for label in labels_of(model).values()}


def test_repeated_blocks_have_one_name_and_their_parts_too() -> None:
    model = nn.ModuleDict({"h": nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(2)), "head": nn.Tanh()})

    assert names(model) == {
        "": "model", "h": "h", "h.0": "h.*", "h.0.0": "h.*.0", "h.1": "h.*", "h.1.0": "h.*.0", "head": "head",
    }  # fmt: skip


def test_siblings_of_another_shape_or_class_keep_their_numbers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.Linear(2, 3))

    assert list(names(model).values()) == ["model", "*", "1", "*", "3"]


def test_names_that_are_no_numbers_are_kept() -> None:
    model = nn.ModuleDict({"left": nn.Linear(2, 2), "right": nn.Linear(2, 2)})

    assert list(names(model).values()) == ["model", "left", "right"]


def test_a_module_with_two_names_goes_by_the_first() -> None:
    shared = nn.Linear(2, 2)

    labels = labels_of(nn.ModuleDict({"read": shared, "write": shared}))

    assert labels[shared].name == "read"
    assert len(labels) == 2


def test_what_torch_compile_wraps_keeps_its_name_and_class_and_is_traced() -> None:
    wrapped: Any = torch.compile(nn.Sequential(nn.Tanh()), backend="eager")
    model = nn.ModuleDict({"body": wrapped, "head": nn.Tanh()})

    found = [(label.name, label.kind, label.traced) for label in labels_of(model).values()]

    assert found == [
        ("", "ModuleDict", False), ("body", "Sequential", False), ("body", "Sequential", True),
        ("body.0", "Tanh", True), ("head", "Tanh", False),
    ]  # fmt: skip


def test_a_module_that_is_compiled_in_place_is_traced_with_its_parts() -> None:
    model = nn.Sequential(nn.Sequential(nn.Tanh()), nn.Linear(1, 1))
    model[0].compile(backend="eager")

    assert [label.traced for label in labels_of(model).values()] == [False, True, True, False]


# record


def test_parts_of_one_name_and_class_are_one_row() -> None:
    parts = [Part(name="h.*", kind=kind, size_bytes=size) for kind, size in (("A", 1), ("B", 9), ("A", 2))]

    assert largest(parts) == (
        Part(name="h.*", kind="B", size_bytes=9),
        Part(name="h.*", kind="A", size_bytes=3, count=2),
    )


def test_only_the_largest_rows_are_kept() -> None:
    found = largest(Part(name=str(size), kind="", size_bytes=size) for size in range(50))

    assert [part.size_bytes for part in found] == list(range(49, 49 - LARGEST, -1))


# lab, and the command line


def test_where_memory_cannot_be_taken_apart_a_warning_says_why(workload: WriteWorkload, tmp_path: Path) -> None:
    spec = WorkerSpec(device="cpu", workload=str(workload()), limit_bytes=1 << 30)
    with WorkerLab(spec, timeout_seconds=60.0, watcher=Silent()) as lab:
        found = lab.dissect(Trial(micro_batch=2), tmp_path / "memory.pickle")

    assert found is None
    assert lab.warnings == [
        "where the memory goes is not known: the allocator of the CPU keeps no history: use a GPU, real or virtual"
    ]
    assert not (tmp_path / "memory.pickle").exists()


def test_a_run_that_is_continued_still_writes_its_snapshot_unless_another_is_named(
    cli: Cli, workload: WriteWorkload
) -> None:
    path, folder = workload(), cli.folder / "run"
    folder.mkdir()
    asked = Request(
        workload=str(path),
        workload_digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        target_batch=8,
        snapshot="none/x.pickle",
        started_in="/elsewhere",
    )
    write_json(without_plan(Status.INTERRUPTED, request=asked), folder)

    kept, named = cli("probe", "--resume", folder), cli("probe", "--resume", folder, "--snapshot", "gone/y.pickle")

    # What is wrong with a path shows which one it is, before anything is run.
    assert kept.error == "error: --snapshot /elsewhere/none/x.pickle: there is no folder /elsewhere/none"
    assert named.error == "error: --snapshot gone/y.pickle: there is no folder gone"

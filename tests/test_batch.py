from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch

from autoaccum import batch as batches
from autoaccum.batch import check_rows, tensors, to_device
from autoaccum.errors import UsageError, WorkloadError

META = torch.device("meta")  # a second device that every machine has


@dataclass(frozen=True)
class Frozen:
    ids: torch.Tensor
    note: str


class Encoding(UserDict[str, Any]):
    """As Hugging Face's BatchEncoding: a UserDict with more in it than its items."""

    def __init__(self, data: dict[str, Any], kind: str) -> None:
        super().__init__(data)
        self.kind = kind


Pair = namedtuple("Pair", "left right")


def test_tensors_are_found_with_the_expression_that_leads_to_them() -> None:
    batch = {"x": [torch.zeros(2), (torch.zeros(2), "text")], "y": Frozen(torch.zeros(2), "note")}

    assert [name for name, _ in tensors(batch)] == ["batch['x'][0]", "batch['x'][1][0]", "batch['y'].ids"]


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(2),
        [torch.zeros(2)],
        (torch.zeros(2), None),
        {"a": {"b": torch.zeros(2)}},
        Frozen(torch.zeros(2), "note"),
        Pair(torch.zeros(2), 1),
        Encoding({"ids": torch.zeros(2)}, "text"),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_batch_of_any_nesting_is_moved_and_keeps_its_type(batch: Any) -> None:
    moved = to_device(batch, META)

    assert type(moved) is type(batch)
    assert {tensor.device for _, tensor in tensors(moved)} == {META}
    assert {tensor.device.type for _, tensor in tensors(batch)} == {"cpu"}


def test_what_a_batch_holds_besides_tensors_survives_the_move() -> None:
    assert to_device(Encoding({"ids": torch.zeros(2)}, "text"), META).kind == "text"
    assert to_device(Frozen(torch.zeros(2), "note"), META).note == "note"


def test_an_object_that_moves_itself_is_asked_to() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])

    moved = to_device({"seq": packed}, META)["seq"]

    assert moved.data.device == META


def test_a_tensor_with_other_rows_is_named() -> None:
    with pytest.raises(WorkloadError, match=r"batch\['mask'\] with 3 rows \(shape \(3, 5\)\), not 4"):
        check_rows({"ids": torch.zeros(4), "mask": torch.zeros(3, 5)}, 4)


def test_a_scalar_tensor_has_no_rows() -> None:
    with pytest.raises(WorkloadError, match=r"batch\[1\] without rows"):
        check_rows((torch.zeros(4), torch.tensor(1.0)), 4)


@pytest.mark.parametrize("batch", [[], {}, "text", None, 4])
def test_a_batch_without_a_tensor_is_an_error(batch: Any) -> None:
    with pytest.raises(WorkloadError, match="no tensor"):
        check_rows(batch, 4)


@dataclass
class Named:
    ids: torch.Tensor
    names: list[str]


def test_a_split_reaches_every_row_of_any_nesting() -> None:
    batch = {
        "pair": Named(torch.arange(5), ["a", "b", "c", "d", "e"]),
        "image": (torch.arange(10).view(5, 2), numpy.arange(5)),
        "temperature": torch.tensor(0.5),
        "split": "train",
    }

    first, second = batches.split(batch, (3, 2))

    assert torch.equal(first["pair"].ids, torch.arange(3))
    assert second["pair"].names == ["d", "e"]
    assert torch.equal(second["image"][0], torch.tensor([[6, 7], [8, 9]]))
    assert second["image"][1].tolist() == [3, 4]
    assert (first["temperature"], first["split"]) == (0.5, "train")


def test_a_split_copies_nothing() -> None:
    whole = torch.arange(6)

    parts = list(batches.split((whole,), (4, 2)))

    assert parts[1][0].data_ptr() == whole[4:].data_ptr()


def test_what_cannot_be_split_says_what_to_do() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(2, 1), torch.zeros(1, 1)])

    with pytest.raises(UsageError, match=r"a PackedSequence cannot be split: .* list of micro-batches"):
        list(batches.split((torch.zeros(2), packed), (1, 1)))


@pytest.mark.parametrize("size", [1, 3, 7])
def test_tiling_repeats_rows_or_leaves_some_out(size: int) -> None:
    tiled = batches.tile({"x": torch.arange(3), "names": ["a", "b", "c"]}, size)

    assert tiled["x"].tolist() == [0, 1, 2, 0, 1, 2, 0][:size]
    assert tiled["names"] == ["a", "b", "c", "a", "b", "c", "a"][:size]


def test_sizes_are_the_plans_or_as_even_as_fits() -> None:
    assert batches.sizes(24, (10, 7, 7)) == (10, 7, 7)
    assert batches.sizes(24, (10, 7, 7), most=9) == [8, 8, 8]
    assert batches.sizes(23, (10, 7, 7)) == [8, 8, 7]
    assert batches.sizes(0, (10, 7, 7)) == []

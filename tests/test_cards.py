from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoaccum.errors import UsageError
from autoaccum.rehearsal import cards

GIB = 1 << 30
MIB = 1 << 20


def keys(text: str) -> list[str]:
    return [card.key for card in cards.parse(text)]


def mistake(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        cards.parse(text)
    return caught.value


def test_no_two_cards_share_a_key() -> None:
    known = [card.key for card in cards.known()]

    assert len(set(known)) == len(known)


def test_the_list_begins_with_the_smallest() -> None:
    totals = [card.total_bytes for card in cards.known()]

    assert totals == sorted(totals)


@pytest.mark.parametrize("card", cards.known(), ids=lambda card: card.key)
def test_a_card_reports_a_little_less_than_its_data_sheet_says(card: cards.Card) -> None:
    sold = re.match(r"data sheet: ([0-9]+) GB", card.source)

    assert sold is not None
    assert 0.90 < card.total_bytes / (int(sold[1]) * GIB) < 1.0


@pytest.mark.parametrize("card", cards.known(), ids=lambda card: card.key)
def test_a_size_in_a_key_is_that_of_the_data_sheet(card: cards.Card) -> None:
    size = re.search(r"-([0-9]+)gb$", card.key)

    assert size is None or f"data sheet: {size[1]} GB" in card.source


@pytest.mark.parametrize("card", cards.known(), ids=lambda card: card.key)
def test_a_card_says_what_was_reported_and_where(card: cards.Card) -> None:
    assert re.search(r"; reported: [0-9.]+ [MG]iB \(.+\)$", card.source)


@pytest.mark.parametrize("card", cards.known(), ids=lambda card: card.key)
def test_a_virtual_gpu_can_have_the_name_and_the_capability(card: cards.Card) -> None:
    assert "," not in card.name
    assert re.fullmatch(r"[0-9]+\.[0-9]", card.capability)
    assert card.multiprocessors > 0


@pytest.mark.parametrize("card", cards.known(), ids=lambda card: card.key)
def test_every_key_stands_for_its_own_card(card: cards.Card) -> None:
    assert cards.parse(card.key) == (card,)


def test_no_spelling_stands_for_two_cards() -> None:
    names = [cards._squeezed(card.name) for card in cards.known()]

    assert len(set(names)) == len(names)
    assert not {cards._squeezed(card.key) for card in cards.known()} & set(cards._short())


def test_a_card_survives_the_way_to_plain_data_and_back() -> None:
    card = cards.parse("a100-40gb")[0]

    assert cards.Card.from_dict(card.to_dict()) == card


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("A100-40GB", "a100-40gb"),
        (" a100-80g ", "a100-80gb"),
        ("a100 80 gb", "a100-80gb"),
        ("a100_80gib", "a100-80gb"),
        ("4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("rtx-4090-24gb", "rtx-4090"),
        ("2080ti", "rtx-2080-ti"),
        ("gtx1080ti", "gtx-1080-ti"),
        ("a6000", "rtx-a6000"),
        ("a10", "a10"),
        ("a10g", "a10g"),
        ("l4-24gb", "l4"),
        ("h100", "h100-80gb"),
        ("h100-sxm", "h100-80gb"),
        ("h100-pcie-80gb", "h100-pcie"),
        ("h100-94gb", "h100-nvl"),
        ("h200-141gb", "h200"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("rtx-pro-6000-blackwell", "rtx-pro-6000"),
    ],
)
def test_a_card_may_be_written_in_other_ways(text: str, key: str) -> None:
    assert keys(text) == [key]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a100", "write a100-40gb or a100-80gb,"),
        ("NVIDIA V100", "write v100-16gb or v100-32gb,"),
        ("NVIDIA GeForce RTX 3080", "write rtx-3080-10gb,"),
        ("rtx-4060-ti", "write rtx-4060-ti-16gb,"),
        ("p100", "write p100-16gb,"),
    ],
)
def test_a_name_that_is_sold_in_several_sizes_is_asked_about(text: str, says: str) -> None:
    assert f'"{text}" is sold in several sizes: {says}' in str(mistake(text))


def test_the_order_is_kept() -> None:
    assert keys("h100-80gb,24GiB,l4") == ["h100-80gb", "24GiB", "l4"]


def test_what_is_named_twice_is_taken_once() -> None:
    assert keys("l4,a10g,NVIDIA L4,24GiB,24576MiB") == ["l4", "a10g", "24GiB"]


def test_all_is_the_whole_list() -> None:
    assert cards.parse("All") == cards.known()


def test_all_can_have_company() -> None:
    assert keys("24GiB,all,l4") == ["24GiB", *(card.key for card in cards.known())]


def test_a_size_is_a_card_of_its_own() -> None:
    assert cards.parse("24GiB") == (
        cards.Card(
            key="24GiB",
            name="24.0 GiB",
            total_bytes=24 * GIB,
            capability="8.0",
            multiprocessors=108,
            source="as given",
        ),
    )


@pytest.mark.parametrize(
    ("text", "total"), [("40960MiB", 40 * GIB), ("24GB", 24 * 10**9), ("1.5 gib", 1536 * MIB), ("300MiB", 300 * MIB)]
)
def test_a_size_may_have_any_unit(text: str, total: int) -> None:
    assert cards.parse(text)[0].total_bytes == total


@pytest.mark.parametrize(
    ("text", "near"), [("a1000", "a100-40gb"), ("h10", "h100-80gb"), ("a100-45gb", "a100-40gb"), ("l400s", "l40s")]
)
def test_a_mistyped_name_is_guessed(text: str, near: str) -> None:
    assert f'unknown GPU "{text}": did you mean {near}? ' in str(mistake(text))


def test_another_gpu_of_the_same_family_is_not_taken_for_a_mistyped_one() -> None:
    assert "did you mean" not in str(mistake("rtx-5070"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no GPU is named: name a GPU such as a100-40gb"),
        (" \n", "no GPU is named"),
        (",", '"," has a comma too many'),
        ("l4,", '"l4," has a comma too many'),
        ("l4,\n,a10g", '"l4, ,a10g" has a comma too many'),
        ("0GiB", "is no memory at all"),
        ("1.2.3GiB", "is not a size"),
        ("-5GiB", "a size such as 24GiB works too"),
        ("24", "write 24GiB for a size"),
        ("24G", "write 24GiB for a size"),
        ("80%", "a size such as 24GiB works too"),
        ("toaster\noven", 'unknown GPU "toaster oven": --gpu all takes every GPU that is known'),
        ("l4,toaster", 'unknown GPU "toaster"'),
        ("a100", "is sold in several sizes"),
    ],
)
def test_a_mistake_is_answered_in_one_line(text: str, says: str) -> None:
    error = mistake(text)

    assert says in str(error)
    assert "\n" not in str(error)
    assert error.exit_code == 2


def test_the_docs_list_every_card() -> None:
    page = Path(__file__).parent.parent / "docs" / "rehearse-gpus.md"

    assert cards.as_table() in page.read_text(encoding="utf-8")

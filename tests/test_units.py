from __future__ import annotations

import pytest

from autoaccum.errors import UsageError
from autoaccum.units import format_bytes, parse_budget, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GiB", 20 * 2**30),
        ("20GB", 20 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 gib", 3 * 2**29),
        (" 7KB ", 7000),
        ("100B", 100),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["20XB", "", "GiB", "20", "-5GiB", "0GiB", "1e9B", "20 G i B", "nanGiB"])
def test_what_is_no_size_is_a_usage_error_that_quotes_it(text: str) -> None:
    with pytest.raises(UsageError, match=f'"{text}"'):
        parse_bytes(text)


def test_an_unknown_unit_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r'unknown unit "XB": use one of B, KB, .* GiB'):
        parse_bytes("20XB")


def test_a_share_is_of_the_total() -> None:
    assert parse_budget("80%", 1000) == 800
    assert parse_budget("12.5 %", 1000) == 125


@pytest.mark.parametrize("text", ["0%", "101%", "-3%", "%"])
def test_a_share_outside_the_device_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_budget(text, 1000)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (2**20, "1.00 MiB"), (19.6 * 2**30, "19.6 GiB"), (2**40, "1.00 TiB")]
)
def test_bytes_are_shown_with_three_digits(size: float, text: str) -> None:
    assert format_bytes(size) == text

"""What a process holds besides torch's memory: remembered from probe to probe, and never in the way."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoaccum.records import DeviceInfo
from autoaccum.rehearsal.constants import DEFAULT, Constant, constant_for, remember
from autoaccum.units import GIB, MIB
from tests.reports import failed, ran

CARD = "NVIDIA A100-SXM4-40GB"
ENVIRONMENT = {"torch": "2.15.0+cu132", "cuda": "13.2", "driver": "610.12"}
DEVICE = DeviceInfo(kind="cuda", name=CARD, uuid=None, total_bytes=40 * GIB, free_bytes=39 * GIB, overhead_told=True)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the constants are kept; it is not there yet."""
    monkeypatch.setenv("AUTOACCUM_CACHE", str(tmp_path / "a cache"))
    return tmp_path / "a cache" / "constants.json"


def probe(constant_bytes: int, card: str = CARD, **versions: str) -> None:
    sample = ran(1, 8, peak_reserved_bytes=4 * GIB, device_used_bytes=4 * GIB + constant_bytes)
    remember(replace(DEVICE, name=card), [sample], {**ENVIRONMENT, **versions})


def on_day(date: str, file: Path) -> None:
    """Have all that is kept now be of that day."""
    rows = json.loads(file.read_text())["constants"]
    file.write_text(json.dumps({"constants": [{**row, "date": date} for row in rows]}))


def test_what_a_probe_showed_is_remembered_within_a_narrow_band(file: Path) -> None:
    probe(500 * MIB)
    on_day("2026-11-18", file)

    assert constant_for(CARD, ENVIRONMENT) == Constant(
        typical_bytes=500 * MIB,
        low_bytes=436 * MIB,
        high_bytes=564 * MIB,
        source="measured on this machine 2026-11-18 with torch 2.15.0",
    )


def test_the_driver_and_the_versions_stand_in_the_file(file: Path) -> None:
    probe(500 * MIB)

    (row,) = json.loads(file.read_text())["constants"]
    assert (row["card"], row["torch"], row["cuda"], row["driver"]) == (CARD, "2.15.0", "13.2", "610.12")


def test_the_largest_of_the_trials_that_ran_counts() -> None:
    samples = [
        ran(1, 2, peak_reserved_bytes=GIB, device_used_bytes=GIB + 400 * MIB),
        ran(2, 4, peak_reserved_bytes=2 * GIB, device_used_bytes=2 * GIB + 420 * MIB),
        replace(failed(3, 8), peak_reserved_bytes=3 * GIB, device_used_bytes=4 * GIB),
    ]

    remember(DEVICE, samples, ENVIRONMENT)

    assert constant_for(CARD, ENVIRONMENT).typical_bytes == 420 * MIB


@pytest.mark.parametrize("kind", ["virtual", "cpu"])
def test_what_is_no_real_gpu_is_not_remembered(kind: str, file: Path) -> None:
    remember(replace(DEVICE, kind=kind), [ran(1, 8)], ENVIRONMENT)

    assert not file.exists()


def test_where_nvml_told_nothing_nothing_is_remembered(file: Path) -> None:
    probe(0)
    remember(DEVICE, [failed(1, 8)], ENVIRONMENT)

    assert not file.exists()


def test_a_card_that_was_never_probed_has_the_default_with_a_wide_band() -> None:
    probe(500 * MIB)

    assert constant_for("NVIDIA A100-SXM4-80GB", ENVIRONMENT) == DEFAULT
    assert DEFAULT.source.startswith("default: ")
    assert DEFAULT.low_bytes < DEFAULT.typical_bytes < 1.8 * GIB <= DEFAULT.high_bytes


def test_the_newest_takes_the_place_of_one_with_the_same_torch_and_cuda(file: Path) -> None:
    probe(500 * MIB)
    probe(600 * MIB, torch="2.15.1")
    probe(300 * MIB, torch="2.14.1")
    probe(200 * MIB, card="NVIDIA L4")

    assert constant_for(CARD, ENVIRONMENT).typical_bytes == 600 * MIB
    assert constant_for(CARD, {**ENVIRONMENT, "torch": "2.14.0"}).typical_bytes == 300 * MIB
    assert constant_for("NVIDIA L4", ENVIRONMENT).typical_bytes == 200 * MIB
    assert len(json.loads(file.read_text())["constants"]) == 3


@pytest.mark.parametrize("other", [{"torch": "2.16.0"}, {"cuda": "12.8"}, {"cuda": None}])
def test_with_another_torch_or_cuda_the_newest_stands_for_it_within_a_wider_band(
    other: dict[str, Any], file: Path
) -> None:
    probe(900 * MIB, torch="2.9.1")
    on_day("2026-11-17", file)
    probe(500 * MIB)

    found = constant_for(CARD, {**ENVIRONMENT, **other})

    assert (found.low_bytes, found.typical_bytes, found.high_bytes) == (400 * MIB, 500 * MIB, 600 * MIB)


BROKEN = {
    "empty": "",
    "cut off": '{"constants": [{"card": "NVI',
    "no JSON": "hello\n",
    "another's": '{"constants": {"pi": 3.14}}',
    "a list": "[1, 2]",
    "nested": "[" * 100_000,
    "rows of another kind": '{"constants": [1, null, "x", {"card": "NVIDIA A100-SXM4-40GB"}]}',
    "bytes as text": json.dumps(
        {
            "constants": [
                {"card": CARD, "torch": "2.15.0", "cuda": "13.2", "driver": "1", "date": "x", "constant_bytes": "9"}
            ]
        }
    ),
    "a negative constant": json.dumps(
        {
            "constants": [
                {"card": CARD, "torch": "2.15.0", "cuda": "13.2", "driver": "1", "date": "x", "constant_bytes": -9}
            ]
        }
    ),
}


@pytest.mark.parametrize("content", list(BROKEN.values()), ids=list(BROKEN))
def test_a_file_that_is_not_ours_is_no_constant_and_the_next_probe_mends_it(content: str, file: Path) -> None:
    file.parent.mkdir()
    file.write_text(content)

    assert constant_for(CARD, ENVIRONMENT) == DEFAULT
    probe(500 * MIB)
    assert constant_for(CARD, ENVIRONMENT).typical_bytes == 500 * MIB


def test_a_row_that_is_not_ours_leaves_the_others_alone(file: Path) -> None:
    probe(500 * MIB)
    rows = json.loads(file.read_text())["constants"]
    file.write_text(json.dumps({"constants": [None, *rows, {"card": 3}]}))

    assert constant_for(CARD, ENVIRONMENT).typical_bytes == 500 * MIB


def test_bytes_that_are_no_text_are_no_constant(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"\xff\xfe\x00")

    assert constant_for(CARD, ENVIRONMENT) == DEFAULT


def test_a_cache_that_cannot_be_written_is_no_trouble(file: Path) -> None:
    file.parent.write_text("in the way")

    probe(500 * MIB)

    assert constant_for(CARD, ENVIRONMENT) == DEFAULT


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(file: Path) -> None:
    (file / "in the way").mkdir(parents=True)

    probe(500 * MIB)

    assert [path.name for path in file.parent.iterdir()] == ["constants.json"]
    assert constant_for(CARD, ENVIRONMENT) == DEFAULT


def test_a_user_without_a_home_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("AUTOACCUM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)

    probe(500 * MIB)

    assert constant_for(CARD, ENVIRONMENT) == DEFAULT


def test_probes_at_once_leave_one_whole_file(file: Path) -> None:
    def often(card: str) -> None:
        for _ in range(100):
            probe(500 * MIB, card=card)

    both = [threading.Thread(target=often, args=(card,)) for card in ("one", "other")]
    for thread in both:
        thread.start()
    while any(thread.is_alive() for thread in both):
        if file.exists():
            assert json.loads(file.read_text())["constants"]  # at every moment
    for thread in both:
        thread.join()

    assert [path.name for path in file.parent.iterdir()] == ["constants.json"]
    found = [constant_for(card, ENVIRONMENT) for card in ("one", "other")]
    assert found != [DEFAULT, DEFAULT]  # of two at the very same moment one may be lost, until its next probe

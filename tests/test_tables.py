"""The CSV files: they come back through pandas as they were, and a spreadsheet finds no formula in them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from autoaccum.errors import UsageError
from autoaccum.records import Outcome
from autoaccum.report import files, tables
from autoaccum.report.record import Report
from tests.reports import failed, ran, report, tuning

FORMULA = "=cmd|' /C calc'!A0"


def read(path: Path) -> pd.DataFrame:
    """Read a table of a run back, as docs/report-format.md says."""
    columns = tables.COLUMNS[path.stem]
    return pd.read_csv(
        path,
        dtype=columns,
        keep_default_na=False,
        na_values={name: [""] for name, kind in columns.items() if kind != "string"},
    )


def with_message(message: str) -> Report:
    run = report(samples=(ran(1, 2), failed(2, 4, message=message)), tuning=tuning())
    assert run.tuning is not None
    *others, last = run.tuning.trials
    return replace(run, tuning=replace(run.tuning, trials=(*others, replace(last, message=message))))


@pytest.mark.parametrize("table", list(tables.FRAMES))
def test_a_table_comes_back_exactly(table: str, tmp_path: Path) -> None:
    run = report(tuning=tuning())
    files.write(run, tmp_path)

    back = read(tmp_path / f"{table}.csv")

    pd.testing.assert_frame_equal(back, run.to_frame(table), check_exact=True)
    assert len(back) > 1


@pytest.mark.parametrize("table", list(tables.FRAMES))
def test_the_columns_of_a_frame_are_those_of_the_file(table: str, tmp_path: Path) -> None:
    run = report(tuning=tuning())
    files.write(run, tmp_path)

    with (tmp_path / f"{table}.csv").open(newline="") as file:
        names = next(csv.reader(file))

    assert list(run.to_frame(table)) == names == list(tables.COLUMNS[table])


@pytest.mark.parametrize("table", list(tables.FRAMES))
def test_an_empty_table_comes_back_with_its_types(table: str, tmp_path: Path) -> None:
    run = report(samples=(), plans=(), plan=None)
    files.write(run, tmp_path)

    back = read(tmp_path / f"{table}.csv")

    assert back.empty
    pd.testing.assert_frame_equal(back, run.to_frame(table), check_index_type=False)


@pytest.mark.parametrize(
    "message",
    [
        "NA", "null", "NaN", "", " ", "a\nb\n", "a\r\nb", "a\rb", 'a "quoted", comma', "tab\tin it", "é 日本 🙂",
        "'tis", "<b>&amp;", "1.0", "None", "#comment", "\\N", "a\0b",
    ],
)  # fmt: skip
def test_a_message_comes_back_as_it_was(message: str, tmp_path: Path) -> None:
    run = with_message(message)
    files.write(run, tmp_path)

    assert read(tmp_path / "samples.csv")["message"][1] == message
    assert read(tmp_path / "tuning.csv")["message"].iloc[-1] == message
    assert len(read(tmp_path / "samples.csv")) == 2


def test_half_a_character_as_in_a_file_s_name_is_written_out(tmp_path: Path) -> None:
    run = with_message("no file b\udcff")
    files.write(run, tmp_path)

    pd.testing.assert_frame_equal(read(tmp_path / "samples.csv"), run.to_frame("samples"))
    assert run.to_frame("samples")["message"][1] == "no file b\\udcff"
    assert files.read(tmp_path) == run


def test_numbers_beyond_a_double_come_back(tmp_path: Path) -> None:
    run = report(samples=(ran(1, 2, device_used_bytes=2**53 + 1, step_seconds=0.1 + 0.2), failed(2, 4)))
    files.write(run, tmp_path)

    back = read(tmp_path / "samples.csv")

    assert back["device_used_bytes"][0] == 2**53 + 1
    assert back["step_seconds"][0] == 0.1 + 0.2
    assert pd.isna(back["device_used_bytes"][1])


@pytest.mark.parametrize(
    "message",
    [FORMULA, "+1", "-1", "@SUM(A1)", "  =1+1", "\t=1", "\r=1", "\n=1", "＝1", "\u00a0=1", "\0=1"],
)  # fmt: skip
def test_a_formula_is_defused(message: str, tmp_path: Path) -> None:
    files.write(with_message(message), tmp_path)

    for table in ("samples", "tuning"):
        with (tmp_path / f"{table}.csv").open(newline="", encoding="utf-8") as file:
            assert list(csv.DictReader(file))[-1]["message"] == f"'{message}"


def test_no_row_begins_within_a_message(tmp_path: Path) -> None:
    files.write(with_message(f"a bar\r{FORMULA}"), tmp_path)

    with (tmp_path / "samples.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert [row["trial"] for row in rows] == ["1", "2"]
    assert rows[1]["message"] == f"a bar\r{FORMULA}"


def test_a_frame_holds_the_message_itself() -> None:
    assert with_message(FORMULA).to_frame("samples")["message"][1] == FORMULA


def test_a_negative_number_stays_a_number(tmp_path: Path) -> None:
    run = report()
    files.write(replace(run, plans=(replace(run.plans[0], headroom_bytes=-5),)), tmp_path)

    assert read(tmp_path / "plans.csv")["headroom_bytes"][0] == -5
    assert ",-5," in (tmp_path / "plans.csv").read_text()


def test_lists_and_options_are_json_in_a_cell(tmp_path: Path) -> None:
    run = report(samples=(ran(1, 2, options={"checkpoint": "all"}),))
    files.write(run, tmp_path)

    assert json.loads(read(tmp_path / "samples.csv")["options"][0]) == {"checkpoint": "all"}
    assert json.loads(read(tmp_path / "plans.csv")["micro_batches"][1]) == [32] * 16


def test_knobs_and_the_best_trial_have_columns_of_their_own() -> None:
    run = report(tuning=tuning())
    assert run.tuning is not None

    table = run.to_frame("tuning")

    assert list(table.loc[table["best"], "trial"]) == [run.tuning.best]
    assert set(table["optimizer"]) == {"", "fused"}
    assert set(table["precision"]) == {"", "bf16"}


def test_a_table_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError, match='no table "trials": use samples, plans, tuning'):
        report().to_frame("trials")


def test_outcomes_are_plain_words() -> None:
    run = report(samples=(failed(1, 2, Outcome.TIMED_OUT),))

    assert list(run.to_frame()["outcome"]) == ["timed_out"]


def test_a_text_that_looks_like_a_list_stays_as_it_is_in_json(tmp_path: Path) -> None:
    run = report(samples=(failed(1, 2, message="expected [ 1,  2 ] and got [ 3 ]"),))
    files.write(run, tmp_path)

    assert files.read(tmp_path) == run
    assert '"micro_batches": [32, 32' in (tmp_path / "report.json").read_text()


@pytest.mark.parametrize("hidden", ["\ufeff", "\u200b", "\u2060 "])
def test_a_formula_behind_marks_that_nobody_sees_is_defused(hidden: str) -> None:
    made = report(samples=(failed(1, 2, message=f"{hidden}=1+1"),))

    assert f"'{hidden}=1+1" in tables.to_csv(made, "samples")

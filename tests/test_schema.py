"""report.json and its schema: they agree, and what earlier versions wrote can still be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from autoaccum.errors import UsageError
from autoaccum.records import Outcome, Prior
from autoaccum.report import files, page, schema
from autoaccum.report.record import Report, Status
from tests.conftest import Cli, WriteWorkload
from tests.reports import anatomy, failed, ran, report, tuning, without_plan

DATA = Path(__file__).parent / "data"
# What earlier versions wrote: the first that wrote a report, and the last one before there was a page.
EARLIER = ("report-first.json", "report-tuned.json")
SCHEMA: dict[str, Any] = json.loads(resources("autoaccum.report").joinpath("schema.json").read_text("utf-8"))


def faults(data: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(data)]


def as_data(run: Report) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(files.as_json(run))
    return data


def test_the_schema_file_is_what_the_records_say() -> None:
    assert schema.build() == SCHEMA


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "run",
    [
        report(),
        report(tuning=tuning()),
        report(prior=Prior(start=64, words="rehearsed on a virtual NVIDIA L4: micro-batch 64 predicted to fit")),
        report(anatomy=anatomy()),
        without_plan(Status.INTERRUPTED, device=None, budget=None, model=None),
        without_plan(Status.NOTHING_FITS, failed(1, 2), failed(2, 1)),
        without_plan(Status.FAILED, ran(1, 2), failed(2, 4, Outcome.FAILED)),
    ],
    ids=["planned", "tuned", "rehearsed", "taken apart", "at once", "oom", "failed"],
)
def test_reports_are_valid(run: Report) -> None:
    assert faults(as_data(run)) == []


def test_the_report_of_a_real_tuned_run_is_valid_and_makes_its_files_again(cli: Cli, workload: WriteWorkload) -> None:
    options = ("--target-batch", "8", "--device", "cpu", "--memory-budget", "2GiB", "--tune-trials", "2")
    done = cli("probe", workload(), *options, "--tune-seconds", "10", "--json")

    assert done.code == 0, done.err
    assert faults(done.report) == []
    assert done.report["tuning"]["trials"]
    (folder,) = (cli.folder / "results").iterdir()
    before = {name: (folder / name).read_bytes() for name in files.MADE}
    for name in files.MADE:
        (folder / name).unlink()
    again = cli("report", folder)
    assert (again.code, again.out) == (0, f"wrote  {folder}/  samples.csv  plans.csv  tuning.csv  report.html\n")
    assert {name: (folder / name).read_bytes() for name in files.MADE} == before


BREAKS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no version": lambda data: data.pop("schema_version"),
    "a newer version": lambda data: data.update(schema_version=2),
    "no samples": lambda data: data.pop("samples"),
    "an unknown status": lambda data: data.update(status="fine"),
    "bytes as text": lambda data: data["budget"].update(limit_bytes="20GiB"),
    "bytes as a fraction": lambda data: data["samples"][0].update(device_used_bytes=1.5),
    "an unknown outcome": lambda data: data["samples"][0].update(outcome="great"),
    "a plan without sizes": lambda data: data["plan"].pop("micro_batches"),
    "a switch as a number": lambda data: data["plan"].update(measured=1),
    "a tuning trial without a size": lambda data: data["tuning"]["trials"][0].pop("micro_batch"),
    "a warning that is none": lambda data: data.update(warnings=[1]),
    "an anatomy without its moment": lambda data: data["anatomy"].pop("moment"),
}


@pytest.mark.parametrize("what", list(BREAKS))
def test_a_broken_report_is_rejected(what: str) -> None:
    data = as_data(report(tuning=tuning(), anatomy=anatomy()))

    BREAKS[what](data)

    assert len(faults(data)) == 1


def test_a_field_that_the_schema_does_not_know_is_no_fault() -> None:
    data = as_data(report())
    data["new"] = data["samples"][0]["new"] = 1

    assert faults(data) == []


@pytest.mark.parametrize("name", EARLIER)
def test_what_an_earlier_version_wrote_is_valid_and_read(name: str) -> None:
    found = Report.load(DATA / name)

    assert faults(json.loads((DATA / name).read_text())) == []
    assert found.plan is not None
    assert found.plan.effective_batch == 8
    assert found.samples[-1].phase == "confirm"
    assert found.plan.plot().data
    assert "Train with micro-batch 8 x 1 accumulation step = 8" in page.render(found)
    assert found._repr_html_()


def test_what_was_not_known_then_has_its_default() -> None:
    found = Report.load(DATA / "report-first.json")

    assert (found.tuning, found.request, found.advice, found.anatomy) == (None, None, (), None)
    assert found.model is not None
    assert (found.model.gradient_bytes, found.model.optimizer_state_bytes) == (0, None)
    assert found.samples[0].options == {}
    assert found.to_frame("tuning").empty


def test_a_tuned_run_of_an_earlier_version_keeps_its_trials() -> None:
    found = Report.load(DATA / "report-tuned.json")

    assert found.tuning is not None
    assert len(found.to_frame("tuning")) == len(found.tuning.trials) == 2
    assert found.plot("history").data


def test_a_report_of_a_newer_version_is_refused_in_one_line(cli: Cli) -> None:
    (cli.folder / "report.json").write_text(json.dumps({**as_data(report()), "schema_version": 2}))

    for command in ("report", "show", "plan"):
        done = cli(command, "report.json" if command == "report" else ".")

        assert (done.code, done.out) == (2, "")
        assert done.err == (
            "error: report.json is of version 2, written by a newer autoaccum than this one, which reads up to 1: "
            "upgrade autoaccum\n"
        )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": "1"}', '{"schema_version": 1}', "null", "\udcff"])
def test_what_is_no_report_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(UsageError) as raised:
        Report.load(tmp_path)

    assert str(raised.value) == f"{tmp_path / 'report.json'} is not a report of autoaccum, or is damaged: probe again"


def test_a_report_comes_back_with_what_its_plan_rests_on(tmp_path: Path) -> None:
    run = report(tuning=tuning(), anatomy=anatomy())
    files.write_json(run, tmp_path)

    found = Report.load(tmp_path)

    assert found == run
    assert found.plan is not None
    assert found.plan.evidence == run.evidence

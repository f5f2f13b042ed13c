"""Tuning as users run it: real processes, a real study, real kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import optuna
import pandas as pd
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from autoaccum.report.tables import TUNING_COLUMNS
from autoaccum.tuning.results import shown
from tests.conftest import Cli, WriteWorkload

# A model that takes as long as it is told to: the time of a micro-step by its size.
SLEEPING = """
    import random, time
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def build_model():
        return nn.Linear(4, 4)

    def make_batch(size):
        return torch.randn(size, 4), torch.randint(4, (size,))

    def loss(model, batch):
        time.sleep(seconds(len(batch[0])))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
CONSTANT = "def seconds(size): return 0.004 * size\n"
QUICK = "def seconds(size): return 0.002 * size\n"
BEST_AT_8 = "def seconds(size): return 0.0005 * size * (1 + 0.5 * (size / 8 + 8 / size))\n"


def probe(path: Path, *more: str, target: int = 32) -> tuple[str, ...]:
    options = ("--target-batch", str(target), "--device", "cpu", "--memory-budget", "2GiB", "--tune-seconds", "40")
    return ("probe", os.fspath(path), *options, *more)


def folder_of(cli: Cli) -> Path:
    (folder,) = (cli.folder / "results").iterdir()
    return folder


def study_of(folder: Path) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    (summary,) = optuna.get_all_study_summaries(storage)
    return optuna.load_study(study_name=summary.study_name, storage=storage)


def measured(study: optuna.Study) -> list[tuple[int, str | None]]:
    """The candidates of trials that ended with a result."""
    ended = [trial for trial in study.trials if "autoaccum" in trial.user_attrs]
    return [(trial.params["micro_batch"], trial.params["optimizer"]) for trial in ended]


def test_a_constant_throughput_ends_with_the_simplest_plan(cli: Cli, workload: WriteWorkload) -> None:
    path = workload(CONSTANT, base=SLEEPING)

    report = cli(*probe(path, "--tune-trials", "5", "--tune-seconds", "15", "--json")).report

    assert (report["plan"]["micro_batch"], report["plan"]["options"]) == (32, {})
    assert report["tuning"]["best"] == report["tuning"]["largest"]
    assert 125 < report["plan"]["samples_per_second"] <= 250  # a sleep is never too short


def test_the_fastest_size_is_found_and_the_report_says_what_was_measured(cli: Cli, workload: WriteWorkload) -> None:
    path = workload(BEST_AT_8, base=SLEEPING)

    ran = cli(*probe(path, "--tune-trials", "5", "--tune-seconds", "30", "--allow", "none"))

    assert ran.code == 0
    folder = folder_of(cli)
    report = json.loads((folder / "report.json").read_text())
    assert report["plan"]["micro_batch"] in (8, 11, 16)
    assert ran.out.startswith(f"plan  {'micro-batch'}")
    (tuned,) = [line for line in ran.err.splitlines() if line.startswith("tuned")]
    assert "times as fast as the largest micro-batch that fits (32)" in tuned
    rows = pd.read_csv(folder / "tuning.csv")
    assert list(rows.columns) == list(TUNING_COLUMNS)
    assert len(rows) == len(report["tuning"]["trials"]) <= 5
    best = rows[rows["best"]].iloc[0]
    assert best["micro_batch"] == report["plan"]["micro_batch"]
    assert best["update_seconds_low"] <= best["update_seconds"] <= best["update_seconds_high"]
    # What is stated is a whole update of the confirming run, not the tuning's figure.
    confirmed = [s for s in report["samples"] if s["phase"] == "confirm"][-1]
    assert confirmed["accumulation_steps"] == report["plan"]["accumulation_steps"]
    assert report["plan"]["samples_per_second"] == confirmed["samples_per_second"]


def test_no_tuning_where_there_are_no_trials_or_seconds(cli: Cli, workload: WriteWorkload) -> None:
    path = workload(CONSTANT, base=SLEEPING)
    for off in (("--tune-trials", "0"), ("--tune-trials", "4", "--tune-seconds", "0")):
        report = cli(*probe(path, *off, "--json")).report

        assert report["tuning"] is None
        assert report["plan"]["micro_batch"] == 32


def test_a_killed_run_resumes_without_repeating_what_ended(cli: Cli, workload: WriteWorkload) -> None:
    path = workload(QUICK, base=SLEEPING)
    command = cli.command(*probe(path, "--tune-trials", "4", target=8))
    process = subprocess.Popen(command, cwd=cli.folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    journal = None
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = list((cli.folder / "results").glob("*/study.journal"))
        journal = found[0] if found else None
        if journal is not None and journal.read_text().count('"autoaccum"') >= 2:
            break
        time.sleep(0.2)
    assert journal is not None
    process.kill()
    process.communicate()
    folder = journal.parent
    before = measured(study_of(folder))
    report = json.loads((folder / "report.json").read_text())
    assert report["status"] == "running"
    assert len(before) >= 2

    ran = cli("probe", "--resume", folder)

    assert ran.code == 0, ran.err
    after = measured(study_of(folder))
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 4
    assert "  ok" not in ran.err.split("tuning")[0]  # the search is not repeated
    finished = json.loads((folder / "report.json").read_text())
    assert finished["status"] == "planned"
    assert len(finished["tuning"]["trials"]) == 4
    searched = [s for s in finished["samples"] if s["phase"] != "confirm"]
    assert searched == report["samples"]


def test_an_interrupted_run_keeps_its_trials_and_resumes(cli: Cli, workload: WriteWorkload) -> None:
    path = workload(QUICK, base=SLEEPING)
    command = cli.command(*probe(path, "--tune-trials", "3", target=8))
    process = subprocess.Popen(command, cwd=cli.folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "best so far" in line:
            process.send_signal(signal.SIGINT)
            break
    process.communicate()

    assert process.returncode == 130
    folder = folder_of(cli)
    report = json.loads((folder / "report.json").read_text())
    assert report["status"] == "interrupted"
    assert len(report["tuning"]["trials"]) == len(pd.read_csv(folder / "tuning.csv")) >= 1
    assert cli("probe", "--resume", folder).code == 0
    assert len(set(measured(study_of(folder)))) == len(measured(study_of(folder))) == 3


def test_two_processes_on_one_study_share_the_work(cli: Cli, workload: WriteWorkload) -> None:
    path = workload(QUICK, base=SLEEPING)
    storage = f"sqlite:///{cli.folder / 'shared.db'}"
    options = ("--tune-trials", "6", "--storage", storage, "--json")
    started = [
        subprocess.Popen(
            cli.command(*probe(path, *options, "--out", f"out{number}", target=8)),
            cwd=cli.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    answers = [process.communicate(timeout=170) for process in started]

    assert [process.returncode for process in started] == [0, 0], answers
    (summary,) = optuna.get_all_study_summaries(storage)
    trials = optuna.load_study(study_name=summary.study_name, storage=storage).trials
    ended = [trial for trial in trials if "autoaccum" in trial.user_attrs]
    candidates = [(trial.params["micro_batch"], trial.params["optimizer"]) for trial in ended]
    assert len(candidates) == len(set(candidates))
    assert 6 <= len(candidates) <= 7
    assert not [trial for trial in trials if trial.state is optuna.trial.TrialState.RUNNING]
    assert len({trial.user_attrs["autoaccum"]["process"] for trial in ended}) == 2
    reports = [json.loads(out) for out, _ in answers]
    assert reports[0]["tuning"]["study"] == reports[1]["tuning"]["study"] == summary.study_name
    last = max(reports, key=lambda report: len(report["tuning"]["trials"]))
    assert len(last["tuning"]["trials"]) == len(candidates)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--tune-trials", "-1"), 2, "--tune-trials must be a whole number of 0 or more, not -1"),
        (("--tune-seconds", "-1"), 2, "--tune-seconds must be a number of seconds, 0 or more, not -1.0"),
        (("--allow", "bf17"), 2, 'there is no knob "bf17": did you mean bf16?'),
        (("--objective", "speed"), 2, 'unknown objective "speed": use throughput or energy'),
        (("--storage", "nosql://x", "--tune-trials", "2"), 2, "--storage nosql://x cannot be opened"),
        (("--objective", "energy", "--tune-trials", "2"), 5, "does not tell what energy it uses"),
    ],
)
def test_a_wrong_option_is_one_line(
    cli: Cli, workload: WriteWorkload, options: tuple[str, ...], code: int, message: str
) -> None:
    ran = cli(*probe(workload(CONSTANT, base=SLEEPING), *options))

    assert (ran.code, "Traceback" in ran.err) == (code, False)
    assert message in ran.error


def test_what_cannot_be_resumed_is_refused_in_one_line(cli: Cli, workload: WriteWorkload) -> None:
    path = workload()
    assert cli("probe", path, "--target-batch", "8", "--device", "cpu").code == 0
    folder = folder_of(cli)

    assert cli("probe").error == "error: give the Python file of the workload, or --resume RUN"
    assert "Missing option '--target-batch'" in cli("probe", path).error
    assert "leave FILE out beside --resume" in cli("probe", path, "--resume", folder).error
    assert "leave --split out beside --resume" in cli("probe", "--resume", folder, "--split", "even").error
    assert "holds no report.json" in cli("probe", "--resume", cli.folder).error
    path.write_text(path.read_text() + "\n# another line\n")
    assert "model.py has changed since the run" in cli("probe", "--resume", folder).error
    (folder / "report.json").write_text("{}")
    assert "is not a report of autoaccum" in cli("probe", "--resume", folder).error


def test_the_password_of_a_storage_is_in_no_file() -> None:
    assert shown("postgresql://me:secret@host/db") == "postgresql://...@host/db"
    assert shown("sqlite:///a@b.db") == "sqlite:///a@b.db"
    assert shown("study.journal") == "study.journal"
    assert shown(None) is None


def test_a_knob_that_cannot_be_turned_is_named_with_the_reason(cli: Cli, workload: WriteWorkload) -> None:
    path = workload(CONSTANT, base=SLEEPING)

    report = cli(*probe(path, "--allow", "channels_last,tf32", "--tune-trials", "1", "--json")).report

    assert report["tuning"]["unsupported"]["channels_last"] == "the model has no Conv2d"
    assert report["tuning"]["unsupported"]["tf32"] == "needs CUDA"
    assert "fused" in report["tuning"]["allowed"]


def test_a_run_that_is_finished_is_left_as_it_is(cli: Cli, workload: WriteWorkload) -> None:
    first = cli("probe", workload(), "--target-batch", "8", "--device", "cpu", "--memory-budget", "2GiB")
    assert first.code == 0
    (folder,) = (cli.folder / "results").iterdir()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    ran = cli("probe", "--resume", folder)

    assert ran.code == 2
    assert "is finished: autoaccum show" in ran.error
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

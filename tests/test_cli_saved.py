"""Commands on a run that was saved: plan, compare and show."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoaccum.anatomy.record import Part
from autoaccum.records import Outcome
from autoaccum.report.files import write_json
from autoaccum.report.record import Report, Status
from tests.conftest import Cli
from tests.reports import anatomy, failed, report, tuning, without_plan
from tests.test_cli_errors import check


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return save(report(), tmp_path / "run")


def save(made: Report, folder: Path) -> Path:
    folder.mkdir()
    write_json(made, folder)
    return folder


def wordy() -> Report:
    """A run with much to show, some of it in the words of others."""
    message = "out of memory in the forward pass: [red]x[/] " + "/a/long/path" * 12
    long = Part(name="[red]x[/]" + ".deep" * 30, kind="LongClassName" * 5, size_bytes=4 << 30, count=12)
    return replace(
        report(tuning=tuning(48), anatomy=anatomy(moment="[red]x[/]", modules=(long, *anatomy().modules[1:]))),
        samples=tuple(replace(s, message="" if s.ok else message) for s in report().samples),
        workload="[red]x[/].py",
        warnings=("[bold]what[/] the user wrote " * 12,),
    )


# plan


def test_plan_answers_on_stdout_and_says_on_stderr_what_it_rests_on(cli: Cli, run: Path) -> None:
    ran = cli("plan", run, "--target-batch", "1024")

    assert ran.code == 0
    assert ran.out.startswith("plan  micro-batch 64 x 16 accumulation steps = 1024    peak 19.0 GiB of 20.0 GiB    ")
    assert ran.err == "basis  measured: that run has run micro-batch 64; the speed is a model's\n"


def test_plan_takes_all_that_a_probe_takes(cli: Cli, run: Path) -> None:
    ran = cli(
        "plan",
        run,
        "--target-batch",
        "900",
        "--memory-budget",
        "60%",
        "--world-size",
        "2",
        "--split",
        "uneven",
        "--json",
    )

    plan = ran.report["plan"]
    assert (plan["world_size"], plan["effective_batch"], sum(plan["micro_batches"])) == (2, 900, 450)
    assert ran.report["budget"]["limit_bytes"] == int(24 * 2**30 * 0.6)


def test_plan_prints_json_and_nothing_else_on_stdout(cli: Cli, run: Path) -> None:
    ran = cli("plan", run, "--memory-budget", "40GiB", "--json")

    assert (ran.report["basis"], ran.report["plan"]["micro_batch"]) == ("predicted", 128)
    assert ran.report["error_bytes"] > 0
    assert ran.report["warnings"][0].startswith("40.0 GiB is more than A Card has")
    assert ran.err.startswith("warning  40.0 GiB is more than")


def test_plan_in_quiet_prints_the_plan_only(cli: Cli, run: Path) -> None:
    ran = cli("plan", run, "--memory-budget", "40GiB", "-q")

    assert len(ran.out.splitlines()) == 1
    assert ran.err == ""


def test_plan_takes_the_path_of_a_report_too(cli: Cli, run: Path) -> None:
    assert cli("plan", run / "report.json", "-q").out == cli("plan", run, "-q").out


@pytest.mark.parametrize("command", ["plan", "show"])
def test_a_saved_run_is_read_without_torch(command: str, cli: Cli, run: Path) -> None:
    heavy = "sorted({'torch', 'pandas', 'optuna', 'numpy', 'plotly', 'matplotlib', 'jinja2'} & set(sys.modules))"
    code = f"import sys, atexit; atexit.register(lambda: print({heavy})); from autoaccum.cli import main; main()"

    done = subprocess.run(
        [sys.executable, "-c", code, command, str(run), "-q"], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--memory-budget", "3GiB"], 3, "nothing fits 3.00 GiB"),
        (["--memory-budget", "lots"], 2, '"lots" is not a size'),
        (["--memory-budget", "0GiB"], 2, "no memory at all"),
        (["--target-batch", "0"], 2, "whole number of 1 or more"),
        (["--target-batch", "1000000000000"], 2, "at most 1000000"),
        (["--target-batch", "x"], 2, "not a valid integer"),
        (["--target-batch", "10", "--world-size", "4"], 2, "take 8 or 12"),
        (["--target-batch", "2", "--world-size", "4"], 2, "take 4"),
        (["--split", "evn"], 2, 'unknown split "evn": did you mean even? use auto, even or uneven'),
        (["--taget-batch", "8"], 2, "Did you mean '--target-batch'?"),
    ],
)
def test_a_wrong_question_is_told_in_one_line(
    options: list[str], code: int, words: str, cli: Cli, run: Path
) -> None:  # fmt: skip
    ran = cli("plan", run, *options)

    check(ran, code, words)
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""


@pytest.mark.parametrize("command", ["plan", "show", "compare"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "holds no report.json: give the folder of a run"),
        ("", "is not a report of autoaccum"),
        ("{", "is not a report of autoaccum"),
        ("[]", "is not a report of autoaccum"),
        ('{"schema_version": 1}', "is not a report of autoaccum"),
        ('{"schema_version": 99}', "written by a newer autoaccum"),
        (b"\xff\xfe\x00", "is not a report of autoaccum"),
    ],
)
def test_what_is_no_report_is_a_usage_error(
    command: str, text: str | bytes | None, words: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "odd").mkdir()
    if text is not None:
        (tmp_path / "odd" / "report.json").write_bytes(text.encode() if isinstance(text, str) else text)

    ran = cli(command, "odd", *(["odd"] if command == "compare" else []))

    check(ran, 2, words)
    assert len(ran.err.splitlines()) == 1


def test_the_folder_of_a_rehearsal_is_told_from_that_of_a_probe(cli: Cli) -> None:
    folder = cli.folder / "run"
    folder.mkdir()
    (folder / "rehearsal.json").write_text("{}")

    check(cli("show", "run"), 2, "it is of a rehearsal")


@pytest.mark.parametrize(
    ("name", "words"), [("gone", "holds no report.json"), ("gone.json", "holds no report.json"), ("file", "is a file")]
)
def test_a_run_that_is_no_folder_is_a_usage_error(name: str, words: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")

    check(cli("plan", name), 2, words)


def test_a_run_in_which_nothing_ran_has_nothing_to_plan_from(cli: Cli, tmp_path: Path) -> None:
    save(without_plan(Status.NOTHING_FITS, failed(1, 2), failed(2, 1)), tmp_path / "run")

    check(cli("plan", "run"), 2, "probe again")


# Variables


def test_every_option_can_be_a_variable_and_the_command_line_wins(cli: Cli, run: Path) -> None:
    by_variable = cli("plan", run, "-q", AUTOACCUM_TARGET_BATCH="1024")
    by_both = cli("plan", run, "-q", "--target-batch", "2048", AUTOACCUM_TARGET_BATCH="1024")

    assert " = 1024 " in by_variable.out
    assert " = 2048 " in by_both.out


def test_a_flag_can_be_a_variable(cli: Cli, run: Path) -> None:
    assert cli("plan", run, AUTOACCUM_JSON="1", AUTOACCUM_QUIET="yes").report["basis"] == "confirmed"
    assert cli("plan", run, AUTOACCUM_JSON="0").out.startswith("plan  ")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("AUTOACCUM_TARGET_BATCH", "abc", "Invalid value for AUTOACCUM_TARGET_BATCH: 'abc' is not a valid integer"),
        ("AUTOACCUM_TARGET_BATCH", "0", "not 0 (from the environment: AUTOACCUM_TARGET_BATCH)"),
        ("AUTOACCUM_MEMORY_BUDGET", "lots", "(from the environment: AUTOACCUM_MEMORY_BUDGET)"),
        ("AUTOACCUM_JSON", "maybe", "Invalid value for AUTOACCUM_JSON"),
    ],
)
def test_a_wrong_value_names_its_variable(variable: str, value: str, words: str, cli: Cli, run: Path) -> None:
    check(cli("plan", run, **{variable: value}), 2, words)


def test_a_wrong_value_on_the_command_line_blames_no_variable(cli: Cli, run: Path) -> None:
    ran = cli("plan", run, "--target-batch", "0", AUTOACCUM_TARGET_BATCH="8")

    check(ran, 2, "not 0")
    assert "AUTOACCUM" not in ran.err


def test_a_mistake_elsewhere_blames_no_variable(cli: Cli) -> None:
    ran = cli("plan", "nothere", AUTOACCUM_QUIET="1", AUTOACCUM_TARGET_BATCH="8", AUTOACCUM_MEMORY_BUDGET="8GiB")

    check(ran, 2, "nothere holds no report.json")
    assert "AUTOACCUM" not in ran.err


def test_a_run_is_continued_whatever_variables_say(cli: Cli, run: Path) -> None:
    # The workload of that run is not there: it gets as far as that, past the options.
    ran = cli("probe", "--resume", run, AUTOACCUM_TARGET_BATCH="8", AUTOACCUM_DEVICE="cpu", AUTOACCUM_SEED="3")

    check(ran, 2, "there is no file model.py")


# compare


def test_compare_shows_the_figures_and_what_is_not_alike(cli: Cli, run: Path, tmp_path: Path) -> None:
    other = save(report(target_batch=1024, tuning=tuning()), tmp_path / "other")

    ran = cli("compare", run, other)

    assert ran.code == 0
    assert re.search(r"^peak_bytes +19\.0 GiB +19\.0 GiB +=", ran.out, re.MULTILINE)
    assert re.search(r"^tuning_trials +- +17", ran.out, re.MULTILINE)
    assert "not alike  target batch: 512 and 1024" in ran.out


@pytest.mark.parametrize(("speed", "code"), [(230.5, 0), (225.0, 0), (200.0, 6)])
def test_a_gate_that_holds_is_exit_code_6(speed: float, code: int, cli: Cli, run: Path, tmp_path: Path) -> None:
    before = report()
    assert before.plan is not None
    other = save(replace(before, plan=replace(before.plan, samples_per_second=speed)), tmp_path / "other")

    ran = cli("compare", run, other, "--fail-if", "peak_bytes>+5%,samples_per_second<-5%")

    assert ran.code == code
    assert ran.err == ("failed  samples_per_second<-5%: 230.5 became 200 (-13.2%)\n" if code else "")


def test_compare_prints_json_and_nothing_else_on_stdout(cli: Cli, run: Path) -> None:
    ran = cli("compare", run, run, "--fail-if", "ooms>0", "--json")

    assert ran.code == 6
    assert ran.report["figures"]["peak_bytes"][0] == ran.report["figures"]["peak_bytes"][1]
    assert ran.report["broken"] == ["ooms>0: it is 1"]


def test_a_mistyped_figure_is_asked_after(cli: Cli, run: Path) -> None:
    check(cli("compare", run, run, "--fail-if", "peek_bytes>+5%"), 2, "did you mean peak_bytes?")


# show


def test_show_gives_the_plan_and_the_tables(cli: Cli, tmp_path: Path) -> None:
    save(report(tuning=tuning()), tmp_path / "run")

    out = cli("show", "run").out

    assert out.startswith("plan  micro-batch 64 x 8 accumulation steps = 512")
    titles = ("Where the memory goes", "Plans", "Tuning trials", "Trials")
    assert [line.strip() for line in out.splitlines() if line.strip() in titles] == list(titles)
    assert re.search(r"^ *7 +grow +128 +2 +oom +out of memory", out, re.MULTILINE)


def test_show_tells_where_the_memory_goes_by_part_and_by_module(cli: Cli, tmp_path: Path) -> None:
    save(report(anatomy=anatomy()), tmp_path / "run")

    out = cli("show", "run").out

    assert re.search(r"^activations +14\.0 GiB +73\.6%", out, re.MULTILINE)
    assert re.search(r"^in all +19\.0 GiB +100\.0%", out, re.MULTILINE)
    assert "\nWhen most is in use: in the forward pass, in lm_head, at micro-batch 64." in out
    assert re.search(r"^blocks\.\*\.mlp\.0 +Linear +12 +4\.00 GiB +28\.6%", out, re.MULTILINE)


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_show_keeps_to_the_terminal_and_leaves_numbers_whole(columns: int, cli: Cli, tmp_path: Path) -> None:
    save(wordy(), tmp_path / "run")

    lines = cli("show", "run", COLUMNS=str(columns)).out.splitlines()

    assert max(map(len, lines)) <= columns
    trials = lines[[line.strip() for line in lines].index("Trials") :]
    rows = [re.findall(r"\S+ GiB|\d+ ms", line) for line in trials[3:5]]
    assert rows == [["3.88 GiB", "28 ms"], ["4.37 GiB", "36 ms"]]


def test_show_at_80_columns_has_the_figures_and_knobs_of_each_candidate(cli: Cli, tmp_path: Path) -> None:
    save(wordy(), tmp_path / "run")

    out = cli("show", "run", COLUMNS="80").out

    tuned = out[out.index("Tuning trials") : out.index("\nTrials")]
    assert re.search(r"^ok +32  bf16 autocast, fused +2\.24 s +229 +6\.88 GiB$\n +optimizer *$", tuned, re.MULTILINE)
    assert len(re.findall(r" s +[\d.]+ +[\d.]+ GiB$", tuned, re.MULTILINE)) == 40


def test_show_gives_the_users_text_as_it_is(cli: Cli, tmp_path: Path) -> None:
    save(wordy(), tmp_path / "run")

    out = cli("show", "run", COLUMNS="300").out

    assert re.search(r"^workload +\[red\]x\[/\]\.py", out, re.MULTILINE)
    assert "warning  [bold]what[/] the user wrote" in out
    assert "forward pass: [red]x[/] /a/long" in out


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (without_plan(Status.NOTHING_FITS, failed(1, 2), failed(2, 1)), "Nothing fits: not even the smallest"),
        (without_plan(Status.FAILED, failed(1, 2, Outcome.FAILED, message="[b]no[/]")), "No plan: [b]no[/]"),
        (without_plan(Status.INTERRUPTED, device=None, budget=None, model=None), "Interrupted:"),
    ],
)
def test_show_says_why_there_is_no_plan(made: Report, words: str, cli: Cli, tmp_path: Path) -> None:
    save(made, tmp_path / "run")

    ran = cli("show", "run")

    assert ran.code == 0
    assert ran.out.startswith(words)


def test_show_in_quiet_is_the_plan_only(cli: Cli, run: Path) -> None:
    assert len(cli("show", run, "-q").out.splitlines()) == 1


@pytest.mark.parametrize(("no_color", "escapes"), [("", True), ("1", False)])
def test_show_uses_escape_codes_on_a_terminal_only_and_not_with_no_color(
    no_color: str, escapes: bool, cli: Cli, run: Path
) -> None:
    ours, theirs = pty.openpty()
    variables = {"TERM": "xterm-256color", "COLUMNS": "80", "NO_COLOR": no_color}

    process = subprocess.Popen(cli.command("show", run), stdout=theirs, env={**os.environ, **variables})
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)

    assert process.wait(timeout=30) == 0
    assert b"Trials" in shown
    assert (b"\x1b[" in shown) is escapes
    assert "\x1b" not in cli("show", run).out


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


# What stdout cannot take, and reports that are damaged


@pytest.mark.parametrize("arguments", [["show", "run"], ["compare", "run", "run"], ["plan", "run"]])
def test_a_full_stdout_is_one_line(arguments: list[str], cli: Cli, tmp_path: Path) -> None:
    save(report(tuning=tuning()), tmp_path / "run")

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(cli.command(*arguments), cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)

    assert done.returncode == 1
    assert done.stderr.startswith("error: stdout cannot be written: No space left on device")


def test_a_terminal_that_knows_only_ascii_is_shown_what_it_can_show(cli: Cli, tmp_path: Path) -> None:
    save(report(tuning=tuning()), tmp_path / "run")

    ran = cli("show", "run", PYTHONIOENCODING="ascii")

    assert (ran.code, ran.err) == (0, "")
    assert "micro-batch 64 x 8" in ran.out


@pytest.mark.parametrize("command", ["show", "plan", "report"])
@pytest.mark.parametrize(
    ("before", "after"),
    [('"peak_bytes": 2', '"peak_bytes": "x", "was": 2'), ('"target_batch": 512', '"target_batch": NaN')],
)
def test_a_field_of_another_kind_is_no_report(
    before: str, after: str, command: str, cli: Cli, run: Path, tmp_path: Path
) -> None:
    path = run / "report.json"
    path.write_text(path.read_text().replace(before, after))

    check(cli(command, run), 2, "is not a report of autoaccum")


def test_a_folder_whose_name_ends_in_json_keeps_its_files_to_itself(cli: Cli, tmp_path: Path) -> None:
    save(report(), tmp_path / "run.json")

    ran = cli("report", "run.json")

    assert ran.out.startswith("wrote  run.json/")
    assert (tmp_path / "run.json" / "report.html").exists()
    assert not (tmp_path / "report.html").exists()

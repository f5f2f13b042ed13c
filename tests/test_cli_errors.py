"""Mistakes: one line that says what to do, the right exit code, no traceback, and nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import autoaccum
from autoaccum.report.files import read
from tests.conftest import Cli, Ran, WriteWorkload
from tests.test_isolate import alive, gone_within


def check(ran: Ran, code: int, words: str) -> None:
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    assert ran.error.startswith("error: ")
    assert words in ran.error, ran.error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["gone.py", "--target-batch", "8"], "there is no file gone.py"),
        ([".", "--target-batch", "8"], "is a folder"),
        (["model.py"], "Missing option '--target-batch'"),
        (["model.py", "--target-batch", "0"], "--target-batch must be a whole number of 1 or more, not 0"),
        (["model.py", "--target-batch", "-5"], "not -5"),
        (["model.py", "--target-batch", "abc"], "'abc' is not a valid integer"),
        (["model.py", "--target-batch", "8", "--memory-budget", "20XB"], 'unknown unit "XB"'),
        (["model.py", "--target-batch", "8", "--memory-budget", "150%"], "at most 100%"),
        (["model.py", "--target-batch", "8", "--device", "tpu"], 'unknown device "tpu": use auto, cpu, cuda'),
        (["model.py", "--target-batch", "8", "--split", "odd"], 'unknown split "odd"'),
        (["model.py", "--target-batch", "8", "--world-size", "0"], "--world-size"),
        (["model.py", "--target-batch", "9", "--world-size", "2"], "take 8 or 10"),
        (["model.py", "--target-batch", "8", "--timeout", "0"], "--timeout"),
        (["model.py", "--target-batch", "8", "--timeout", "nan"], "--timeout must be a number of seconds above 0"),
        (["model.py", "--target-batch", "8", "--seed", "-1"], "--seed must be between"),
        (["model.py:", "--target-batch", "8"], "names nothing: write model.py, or model.py:NAME"),
        (["model.py", "--target-batch", "8", "--out", "model.py"], "--out model.py is a file"),
        (["model.py", "--target-batch", "8", "--out", "model.py/below"], "below a file"),
        (["model.py", "--target-batch", "8", "--out", "/sys/autoaccum"], "cannot be written"),
        (["model.py", "--target-batch", "8", "--snapshot", "none/x"], "--snapshot none/x: there is no folder none"),
        (["model.py", "--target-batch", "8", "--snapshot", "."], "--snapshot . is a folder: give a file"),
        (["model.py", "--target-batch", "8", "--frobnicate"], "No such option"),
    ],
)
def test_a_wrong_option_is_a_usage_error(options: list[str], words: str, cli: Cli, workload: WriteWorkload) -> None:
    workload()

    ran = cli("probe", *options)

    check(ran, 2, words)
    assert len(ran.err.splitlines()) == 1
    assert not (cli.folder / "results").exists()


def test_a_read_only_out_is_a_usage_error(cli: Cli, workload: WriteWorkload, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere; /sys stands for it above")
    (tmp_path / "closed").mkdir(mode=0o500)

    check(cli("probe", workload(), "--target-batch", "8", "--out", "closed"), 2, "cannot be written")


def test_a_snapshot_is_refused_on_the_cpu_before_any_trial(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("probe", workload(), "--target-batch", "8", "--device", "cpu", "--snapshot", "x.pickle")

    check(ran, 5, "--snapshot is the history of a GPU's allocator: leave it out on the CPU")
    assert " ok" not in ran.err
    assert not (cli.folder / "x.pickle").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:", "model.py:10: syntax error"),
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("build_model = None", "defines no build_model()"),
        ("def build_model(): return 3", "build_model() returned int, not a torch.nn.Module"),
        ("def build_model(): raise KeyError('width')", "in build_model: KeyError: 'width'"),
        ("def make_batch(size): return torch.zeros(size + 1, 64), torch.zeros(size)", "batch[0] with 3 rows"),
        ("def make_batch(size): return 'text'", "make_batch(2) returned no tensor: it returned str"),
        ("def make_batch(): return 1", "make_batch(2): TypeError"),
        ("def loss(model, batch): return model(batch[0]).mean().detach()", "returned a tensor without grad"),
        ("def loss(model, batch): return model(batch[0])", "returned shape (2, 8): return one number"),
        ("def loss(model, batch): return 0.5", "loss(model, batch) returned float"),
        ("def loss(model, batch): return batch[0] @ batch[0]", "in loss: RuntimeError"),
        ("def build_optimizer(model): return 3", "build_optimizer(model) returned int"),
        ("def build_optimizer(model): return torch.optim.LBFGS(model.parameters())", "closure"),
        ("sys.exit('stop')", "called sys.exit(stop)"),
        ("def build_model(): os._exit(7)", "ended its own process (exit code 7)"),
    ],
)
def test_a_broken_workload_is_told_in_one_line(text: str, words: str, cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("probe", workload(text), "--target-batch", "8", "--device", "cpu", "-q")

    check(ran, 4, words)
    assert len(ran.err.splitlines()) == 1


def test_verbose_adds_the_users_own_traceback(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli(
        "probe", workload("def build_model(): raise KeyError('x')"), "--target-batch", "8", "--device", "cpu", "-v"
    )

    assert "Traceback (most recent call last)" in ran.err
    assert ran.error.startswith("error: ")


def test_a_failure_at_a_larger_size_keeps_the_samples_so_far(cli: Cli, workload: WriteWorkload, tmp_path: Path) -> None:
    path = workload("""
        def make_batch(size):
            if size > 4: raise IndexError("the data set has 4 rows")
            return torch.randn(size, 64), torch.randint(8, (size,))
    """)

    ran = cli("probe", path, "--target-batch", "16", "--device", "cpu")

    check(ran, 4, "IndexError: the data set has 4 rows (micro-batch 16)")
    (folder,) = (tmp_path / "results").iterdir()
    assert [s.outcome for s in read(folder).samples] == ["ok", "failed"]
    assert read(folder).status == "failed"


def test_a_model_larger_than_the_budget_fits_nothing(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("def build_model(): return nn.Linear(8192, 8192)")

    ran = cli("probe", path, "--target-batch", "8", "--memory-budget", "400MiB", "--device", "cpu")

    check(ran, 3, "the budget is 400.0 MiB")
    # The process, 256 MiB that it had, and 256 MiB that it asked for.
    assert "micro-batch 1 needs more than" in ran.error
    assert "raise --memory-budget" in ran.error


def test_a_model_that_needs_two_samples_and_fits_only_one_fits_nothing(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("""
        def build_model(): return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8))
        def make_batch(size):
            if size > 1: raise MemoryError
            return torch.randn(size, 64), torch.randint(8, (size,))
    """)

    check(cli("probe", path, "--target-batch", "8", "--device", "cpu"), 3, "nothing fits")


def test_a_budget_below_the_process_itself_fits_nothing(cli: Cli, workload: WriteWorkload) -> None:
    check(cli("probe", workload(), "--target-batch", "8", "--memory-budget", "50MiB", "--device", "cpu"), 3, "50.0 MiB")


def test_a_device_that_is_not_here_is_said(cli: Cli, workload: WriteWorkload, tmp_path: Path) -> None:
    ran = cli("probe", workload(), "--target-batch", "8", "--device", "cuda:63", CUDA_VISIBLE_DEVICES="")

    check(ran, 5, "--device cpu")
    assert list((tmp_path / "results").iterdir()) == []


def test_a_workload_that_hangs_is_told_to_raise_the_timeout(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("def build_model(): time.sleep(1000)")

    check(cli("probe", path, "--target-batch", "8", "--timeout", "2", "--device", "cpu"), 4, "raise --timeout")


def test_a_workload_that_crashes_is_not_called_out_of_memory(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("""
        import ctypes
        def build_model(): ctypes.string_at(0)
    """)

    check(cli("probe", path, "--target-batch", "8", "--device", "cpu"), 4, "crashed (SIGSEGV)")


def test_a_chatty_workload_leaves_stdout_to_the_report(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("print('x' * 10_000_000); os.system('echo loud')")

    ran = cli("probe", path, "--target-batch", "2", "--device", "cpu", "--json")

    assert ran.code == 0
    assert ran.report["plan"]["micro_batch"] == 2
    assert len(ran.err) < 2000


def test_the_python_call_raises_the_same_errors_with_the_report_so_far(workload: WriteWorkload) -> None:
    path = workload("""
        def loss(model, batch):
            if len(batch[0]) > 2: raise ValueError("no")
            return model(batch[0]).mean()
    """)

    with pytest.raises(autoaccum.WorkloadError, match="ValueError: no") as caught:
        autoaccum.probe(path, target_batch=8, device="cpu", tune_trials=0)

    assert caught.value.report is not None
    assert [s.micro_batch for s in caught.value.report.samples] == [2, 8]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"target_batch": True}, "whole number"),
        ({"target_batch": 2.5}, "whole number"),
        ({"timeout": "5"}, "--timeout"),
        ({"memory_budget": 0}, "no memory at all"),
        ({"device": "gpu"}, "unknown device"),
    ],
)
def test_the_python_call_checks_its_arguments(wrong: dict[str, Any], words: str, workload: WriteWorkload) -> None:
    with pytest.raises(autoaccum.UsageError, match=words):
        autoaccum.probe(workload(), **{"target_batch": 8, **wrong})


def test_a_live_workload_cannot_be_probed_in_another_process() -> None:
    live = autoaccum.Workload(build_model=lambda: None, make_batch=lambda size: None)  # type: ignore[arg-type,return-value]

    with pytest.raises(autoaccum.UsageError, match="give the workload as a file"):
        autoaccum.probe(live, target_batch=8)  # type: ignore[arg-type]


def test_a_reader_of_stderr_that_goes_away_does_not_end_the_run(cli: Cli, workload: WriteWorkload) -> None:
    reading, writing = os.pipe()
    os.close(reading)

    done = subprocess.run(
        cli.command("probe", workload(), "--target-batch", "4", "--device", "cpu"),
        cwd=cli.folder,
        stdout=subprocess.PIPE,
        stderr=writing,
        text=True,
        timeout=100,
    )
    os.close(writing)

    assert done.stdout.startswith("plan  ")


def test_a_full_disk_behind_stdout_is_said_with_where_the_report_is(cli: Cli, workload: WriteWorkload) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            cli.command("probe", workload(), "--target-batch", "4", "--device", "cpu", "-q"),
            cwd=cli.folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
        )

    assert done.returncode == 1
    assert done.stderr.startswith("error: stdout cannot be written: No space left on device; the report is in results/")


SLOW = """
    import pathlib, subprocess
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    pathlib.Path({pid!r}).write_text(f"{{os.getpid()}} {{helper.pid}}")
    def loss(model, batch):
        if len(batch[0]) >= 4: time.sleep(1000)
        return model(batch[0]).mean()
"""


def begin(cli: Cli, path: Path, pid_file: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a probe that hangs at size 4; give it, its worker, and what the workload started."""
    process = subprocess.Popen(
        cli.command("probe", path, "--target-batch", "8", "--device", "cpu"),
        cwd=cli.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while not process.stderr.readline().rstrip().endswith(" ok"):
        assert process.poll() is None
    time.sleep(0.5)
    return process, [int(pid) for pid in pid_file.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_writes_what_it_has_and_leaves_no_process(
    number: signal.Signals, cli: Cli, workload: WriteWorkload, tmp_path: Path
) -> None:
    process, below = begin(cli, workload(SLOW.format(pid=str(tmp_path / "pid"))), tmp_path / "pid")

    process.send_signal(number)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "Traceback" not in err
    assert all(gone_within(2, pid) for pid in below)
    (folder,) = (tmp_path / "results").iterdir()
    report = read(folder)
    assert report.status == "interrupted"
    assert [(s.micro_batch, s.outcome) for s in report.samples] == [(2, "ok")]


def test_a_parent_that_is_killed_leaves_no_process(cli: Cli, workload: WriteWorkload, tmp_path: Path) -> None:
    process, below = begin(cli, workload(SLOW.format(pid=str(tmp_path / "pid"))), tmp_path / "pid")
    assert all(alive(pid) for pid in below)

    process.kill()
    process.communicate(timeout=30)

    assert all(gone_within(10, pid) for pid in below)

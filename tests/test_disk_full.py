"""A disk that is full: what was there stays whole, the error is one line, and a run does not lose its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoaccum.errors import UsageError
from autoaccum.pictures.memory import picture
from autoaccum.pictures.static import draw
from autoaccum.report import files
from tests.conftest import Cli, WriteWorkload
from tests.reports import report, tuning

REPORT = report(tuning=tuning())
# The child's files may have so many bytes: writing more fails as on a full disk, whoever runs the test.
LIMITED = """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
    from autoaccum.cli import main
    main()
"""


class SmallDisk:
    """A real file system of a few megabytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all the room but so much."""
        with (self.path / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(0, file.tell() - leave_bytes))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", os.fspath(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", os.fspath(path)], check=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def limited(cli: Cli, limit_bytes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process whose files may only have so many bytes."""
    code = textwrap.dedent(LIMITED.format(limit=limit_bytes))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cli.folder, capture_output=True, text=True, timeout=170
    )


@pytest.mark.parametrize(
    ("leave_bytes", "name"), [(0, "report.json"), (16_384, "report.json"), (65_536, "report.html")]
)
def test_a_full_disk_leaves_every_file_whole(leave_bytes: int, name: str, small_disk: SmallDisk) -> None:
    run = small_disk.path / "run"
    run.mkdir()
    files.write(REPORT, run)
    before = contents(run)
    small_disk.fill(leave_bytes)

    with pytest.raises(UsageError) as raised:
        files.write(replace(REPORT, target_batch=1), run)

    assert str(raised.value) == (
        f"{run / name} cannot be written: No space left on device; what was there before is whole"
    )
    after = contents(run)
    assert after.keys() == before.keys()
    assert {path for path in after if after[path] == before[path]} >= {name, "report.html"}
    assert json.loads(after["report.json"])


def test_a_full_disk_leaves_an_earlier_picture_whole(small_disk: SmallDisk) -> None:
    path = small_disk.path / "memory.png"
    path.write_bytes(b"an earlier one")
    small_disk.fill()

    with pytest.raises(UsageError, match=r"memory\.png cannot be written: No space left on device"):
        draw(picture(REPORT.evidence), path)

    assert path.read_bytes() == b"an earlier one"
    assert sorted(each.name for each in small_disk.path.iterdir()) == ["filler", "memory.png"]


def test_a_file_that_may_not_grow_leaves_the_old_one_whole(cli: Cli) -> None:
    run = cli.folder / "run"
    run.mkdir()
    files.write(REPORT, run)
    before = contents(run)

    done = limited(cli, 1 << 20, "report", "run")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("error: run/report.html cannot be written: File too large; what was there before is whole\n")
    assert contents(run) == before


def test_the_plan_is_printed_although_the_report_cannot_be_written(cli: Cli, workload: WriteWorkload) -> None:
    options = ("--target-batch", "8", "--device", "cpu", "--memory-budget", "2GiB", "--tune-trials", "0")

    done = limited(cli, 100, "probe", os.fspath(workload()), *options)

    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith("plan  micro-batch 8 x 1 accumulation step = 8    peak ")
    lines = done.stderr.splitlines()
    assert lines[-1].endswith("report.json cannot be written: File too large; what was there before is whole")
    assert lines[-1].startswith("error: results/model-")
    assert len([line for line in lines if "a trial was not kept" in line]) == 1
    assert not [line for line in lines if line.startswith("wrote")]
    assert "Traceback" not in done.stderr
    (folder,) = (cli.folder / "results").iterdir()
    assert list(folder.iterdir()) == []


def test_what_ended_a_run_is_told_although_the_disk_is_full(cli: Cli, workload: WriteWorkload) -> None:
    path = workload("def loss(model, batch): raise ValueError('no rows')\n")

    done = limited(cli, 100, "probe", os.fspath(path), "--target-batch", "8", "--device", "cpu", "--tune-trials", "0")

    assert done.returncode == 4
    assert "no rows" in done.stderr.splitlines()[-1]
    assert "report.json cannot be written: File too large" in done.stderr


def test_a_disk_that_fills_during_tuning_costs_the_tuning_only(cli: Cli, workload: WriteWorkload) -> None:
    options = ("--target-batch", "8", "--device", "cpu", "--memory-budget", "2GiB", "--tune-trials", "4")

    # Room for report.json after the search, and for the head of the study's journal.
    done = limited(cli, 6000, "probe", os.fspath(workload()), *options, "--json")

    assert done.returncode == 2, done.stderr
    found = json.loads(done.stdout)
    assert (found["status"], found["plan"]["effective_batch"]) == ("planned", 8)
    assert [text for text in found["warnings"] if text.startswith("tuning ended early, its study cannot be written")]

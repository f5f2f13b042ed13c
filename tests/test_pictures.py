"""The picture of memory: what is in it, and the two libraries that draw it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autoaccum.errors import UsageError
from autoaccum.pictures.memory import parts_of, picture
from autoaccum.pictures.static import draw
from autoaccum.plans import Plan
from autoaccum.records import Evidence, Outcome
from autoaccum.report import files
from autoaccum.report.record import Status
from autoaccum.units import GIB, MIB
from tests.conftest import Cli, WriteWorkload
from tests.reports import LIMIT, failed, peak, ran, report, without_plan

REPORT = report()
NO_EVIDENCE = Evidence(samples=(), memory_model=None, budget=None, model=None)


def test_the_layers_add_up_to_the_fit() -> None:
    found = picture(REPORT.evidence)

    assert [sum(each) for each in zip(*(values for _, values in found.layers), strict=True)] == list(found.fit)
    assert [name for name, _ in found.layers] == [
        "context and libraries", "parameters", "gradients", "optimizer state", "activations, temporary, cache",
    ]  # fmt: skip


def test_the_layers_add_up_to_a_fit_that_lies_too_low() -> None:
    memory, model = REPORT.memory_model, REPORT.model
    assert memory is not None
    assert model is not None
    heavy = replace(model, optimizer_state_bytes=100 * GIB)

    parts = parts_of(memory.device_bytes(4), memory.overhead_bytes, heavy)

    assert sum(part.size_bytes for part in parts) == memory.device_bytes(4)
    assert min(part.size_bytes for part in parts) >= 0


def test_the_fit_is_that_of_the_samples_and_its_band_encloses_it() -> None:
    found = picture(REPORT.evidence)

    assert all(abs(fit - peak(size) - 400 * MIB) < MIB for size, fit in zip(found.sizes, found.fit, strict=True))
    assert all(low < fit < high for low, fit, high in zip(found.low, found.fit, found.high, strict=True))
    assert found.sizes[0] == 1
    assert 128 < found.sizes[-1] < 160


def test_the_band_widens_beyond_the_sizes_that_ran() -> None:
    found = picture(REPORT.evidence)
    share = [(high - fit) / fit for high, fit in zip(found.high, found.fit, strict=True)]

    within = [s for s, size in zip(share, found.sizes, strict=True) if size <= 64]
    assert share[-1] >= max(within) > 0


def test_what_ran_out_of_memory_is_marked_at_the_limit() -> None:
    found = picture(REPORT.evidence)

    (point,) = found.failed
    assert (point.micro_batch, point.size_bytes, point.text) == (128, LIMIT, "out of memory")


@pytest.mark.parametrize(("outcome", "words"), [(Outcome.KILLED, "killed"), (Outcome.TIMED_OUT, "timed out")])
def test_what_was_killed_or_timed_out_is_marked_too(outcome: Outcome, words: str) -> None:
    found = picture(replace(REPORT.evidence, samples=(ran(1, 2), failed(2, 4, outcome))))

    assert [point.text for point in found.failed] == [words]


def test_a_trial_whose_code_raised_says_nothing_of_memory() -> None:
    found = picture(replace(REPORT.evidence, samples=(ran(1, 2), failed(2, 4, Outcome.FAILED))))

    assert [point.micro_batch for point in found.points] == [2]


def test_confirming_trials_stand_apart() -> None:
    found = picture(REPORT.evidence)

    assert [point.micro_batch for point in found.confirmed] == [64]
    assert [point.micro_batch for point in found.ran] == [2, 4, 8, 16, 32, 64]


def test_trials_with_other_knobs_than_the_last_are_left_out() -> None:
    knobs = {"checkpoint": "all"}
    samples = (failed(1, 1), ran(2, 2, options=knobs), ran(3, 4, options=knobs), ran(4, 4, phase="confirm"))

    found = picture(replace(REPORT.evidence, samples=samples))

    assert [point.micro_batch for point in found.points] == [2, 4, 4]
    assert found.failed == ()


def test_nothing_measured_gives_an_empty_picture() -> None:
    found = picture(NO_EVIDENCE)

    assert (found.points, found.sizes, found.layers, found.limit_bytes) == ([], (), (), None)


def test_a_plan_draws_what_it_rests_on() -> None:
    assert REPORT.plan is not None
    figure = REPORT.plan.plot()

    assert [trace.name for trace in figure.data] == [
        "context and libraries", "parameters", "gradients", "optimizer state", "activations, temporary, cache",
        "its error", "fit", "ran", "did not fit", "confirmed, as in training", "budget 20.0 GiB",
    ]  # fmt: skip
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name["did not fit"].x) == [128]
    assert set(by_name["budget 20.0 GiB"].y) == {20.0}
    assert {trace.stackgroup for trace in figure.data[:5]} == {"parts"}
    assert figure.layout.yaxis.title.text == "memory (GiB)"


def test_every_ranked_plan_draws_what_it_rests_on() -> None:
    assert all(len(plan.plot().data) == 11 for plan in REPORT.plans)


def test_a_plan_without_measurements_says_so() -> None:
    with pytest.raises(UsageError, match="comes without measurements"):
        Plan.of(target_batch=8, micro_batch=2).plot()


def test_evidence_is_no_part_of_what_is_written_or_compared() -> None:
    assert REPORT.plan is not None

    assert "evidence" not in REPORT.plan.to_dict()
    assert replace(REPORT.plan, evidence=None) == REPORT.plan


@pytest.mark.parametrize(("name", "start"), [("m.svg", b"<?xml"), ("m.PNG", b"\x89PNG"), ("m.pdf", b"%PDF")])
def test_a_picture_is_of_the_kind_that_its_name_says(name: str, start: bytes, tmp_path: Path) -> None:
    draw(picture(REPORT.evidence), tmp_path / name)

    assert (tmp_path / name).read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_the_same_run_gives_the_same_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in ("86400", "864000"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", day)  # what matplotlib takes for now
        draw(picture(REPORT.evidence), tmp_path / f"{day}.{kind}")

    assert (tmp_path / f"86400.{kind}").read_bytes() == (tmp_path / f"864000.{kind}").read_bytes()


def test_text_stays_text_in_an_svg(tmp_path: Path) -> None:
    draw(picture(REPORT.evidence), tmp_path / "m.svg")

    text = (tmp_path / "m.svg").read_text()
    for words in ("budget 20.0 GiB", "did not fit", "optimizer state", "micro-batch (samples)", "memory (GiB)"):
        assert f">{words}</text>" in text


def test_runs_that_ended_early_can_be_drawn(tmp_path: Path) -> None:
    runs = {
        "nothing": without_plan(Status.INTERRUPTED),
        "one": without_plan(Status.INTERRUPTED, ran(1, 2)),
        "oom": without_plan(Status.NOTHING_FITS, failed(1, 2), failed(2, 1)),
        "no-device": without_plan(Status.INTERRUPTED, device=None, budget=None, model=None),
    }
    for name, run in runs.items():
        draw(picture(run.evidence), tmp_path / f"{name}.svg")

    assert ">did not fit</text>" in (tmp_path / "oom.svg").read_text()
    assert ">ran</text>" in (tmp_path / "one.svg").read_text()
    assert len(list(tmp_path.iterdir())) == len(runs)


def test_a_wrong_path_is_refused_before_any_trial(cli: Cli, workload: WriteWorkload) -> None:
    path = workload()
    (cli.folder / "folder.svg").mkdir()
    wrong = {
        "memory.gif": "--plot memory.gif is no picture: end its name in .svg, .png or .pdf",
        "none/memory.svg": "--plot none/memory.svg: there is no folder none",
        "folder.svg": "--plot folder.svg is a folder: give a file",
    }
    for given, message in wrong.items():
        done = cli("probe", path, "--target-batch", "8", "--device", "cpu", "--plot", given)

        assert (done.code, done.err.strip(), done.out) == (2, f"error: {message}", "")
    assert not (cli.folder / "results").exists()


def test_without_matplotlib_a_picture_is_refused_before_any_trial(cli: Cli, workload: WriteWorkload) -> None:
    path = workload()
    # None in sys.modules is what Python itself takes for a module that is not there.
    hidden = "import sys; sys.modules['matplotlib'] = None; from autoaccum.cli import main; main()"
    options = ["probe", str(path), "--target-batch", "8", "--device", "cpu", "--plot", "memory.svg"]

    done = subprocess.run(
        [sys.executable, "-c", hidden, *options], cwd=cli.folder, capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr.strip()) == (2, "error: --plot needs matplotlib: pip install matplotlib")
    assert not (cli.folder / "results").exists()


def test_a_saved_run_is_drawn_by_the_report_command(cli: Cli) -> None:
    run = cli.folder / "run"
    run.mkdir()
    files.write_json(REPORT, run)

    done = cli("report", run, "--plot", "memory.svg")

    assert done.code == 0
    assert done.out.startswith("drew  memory.svg\nwrote ")
    assert ">budget 20.0 GiB</text>" in (cli.folder / "memory.svg").read_text()


def test_a_quiet_probe_draws_all_the_same(cli: Cli, workload: WriteWorkload) -> None:
    done = cli(
        "probe", workload(), "--target-batch", "8", "--device", "cpu", "--memory-budget", "2GiB", "-q",
        "--plot", "memory.svg",
    )  # fmt: skip

    assert (done.code, done.err) == (0, "")
    assert ">budget 2.00 GiB</text>" in (cli.folder / "memory.svg").read_text()

"""Where memory goes, on models whose parts can be told by hand, and what a probe makes of it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoaccum import device as devices
from autoaccum import virtual
from autoaccum.anatomy.record import Anatomy, Part
from autoaccum.units import MIB
from tests.conftest import Cli, WriteWorkload

from .conftest import WIDE, WORKLOADS

pytestmark = pytest.mark.gpu

KIB = 1 << 10
SQUARE = 4 * MIB  # the weights of a layer of 1024 x 1024
ROWS = 16 * MIB  # 4096 of 1024 numbers
SCALAR = 4  # the loss
KINDS = (
    "parameter_bytes", "buffer_bytes", "gradient_bytes", "optimizer_bytes", "input_bytes", "activation_bytes",
    "temporary_bytes", "cached_bytes",
)  # fmt: skip

RUN: dict[str, dict[str, Any]] = {
    "linear": {"name": "linear", "trial": {"micro_batch": 64}},
    "three steps": {"name": "linear", "trial": {"micro_batch": 64, "accumulation_steps": 3}},
    "fp16": {"name": "linear", "trial": {"micro_batch": 64, "knobs": {"precision": "fp16"}}},
    "step": {"name": "stepping", "trial": {"micro_batch": 64}},
    "forward": {"name": "forward", "trial": {"micro_batch": 4096, "accumulation_steps": 1}},
    "blocks": {"name": "blocks", "trial": {"micro_batch": 4096}},
    "checkpoint": {"name": "blocks", "trial": {"micro_batch": 4096, "knobs": {"checkpoint": "all"}}},
    "own checkpoint": {"name": "checkpointing", "trial": {"micro_batch": 4096}},
    "student": {"name": "student", "trial": {"micro_batch": 64}},
    "lstm": {"name": "recurrent", "trial": {"micro_batch": 64}},
    "compiled": {"name": "opaque", "trial": {"micro_batch": 4096}},
}
FAILED: dict[str, dict[str, Any]] = {
    "records": {"name": "recording", "trial": {"micro_batch": 64}},
    "raises": {"name": "raising", "trial": {"micro_batch": 64}},
    "large": {"name": "forward", "trial": {"micro_batch": 16384}, "limit_bytes": 300 * MIB},
}

Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def found() -> Found:
    """All of them, taken apart one after another by one process: most of a trial is importing torch."""
    orders = {**RUN, **FAILED}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.dissecting", json.dumps(list(orders.values()))],
        env={**os.environ, **devices.environment("virtual:8GiB")},
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(orders, map(json.loads, done.stdout.splitlines()), strict=True))


def anatomy(found: Found, case: str) -> Anatomy:
    return Anatomy.from_dict(found[case]["anatomy"])


@pytest.mark.parametrize("case", RUN)
def test_the_parts_add_up_to_what_the_same_trial_reserves_in_a_fresh_process(case: str, found: Found) -> None:
    parts, sample = found[case]["anatomy"], found[case]["sample"]

    apart = (4 << 20) if case == "lstm" else 0  # it flattens its weights as it is moved, which leaves a hole
    assert sum(parts[kind] for kind in KINDS) == parts["reserved_bytes"]
    assert abs(sample["peak_reserved_bytes"] - parts["reserved_bytes"]) <= apart
    assert sum(parts[kind] for kind in KINDS[:-1]) == parts["allocated_bytes"] <= sample["peak_allocated_bytes"]
    assert sum(part["size_bytes"] for part in parts["modules"]) == parts["activation_bytes"]


@pytest.mark.parametrize("case", RUN)
def test_a_trial_that_was_taken_apart_leaves_no_hook_and_can_be_run_again(case: str, found: Found) -> None:
    assert (found[case]["hooks"], found[case]["again"]) == (0, "ok")


def test_a_linear_layer_is_told_to_the_byte(found: Found) -> None:
    seen = anatomy(found, "linear")

    assert (seen.parameter_bytes, seen.gradient_bytes, seen.optimizer_bytes) == (SQUARE, SQUARE, 2 * SQUARE)
    assert (seen.input_bytes, seen.activation_bytes, seen.buffer_bytes) == (256 * KIB, SCALAR, 0)
    # The gradients of the weights, before they are added, and of the output; and a library's workspace.
    assert seen.temporary_bytes > SQUARE + 256 * KIB
    assert seen.moment == "the backward pass"


def test_more_micro_steps_hold_no_more(found: Found) -> None:
    two, three = found["linear"]["anatomy"], found["three steps"]["anatomy"]

    assert {**two, "accumulation_steps": 3} == three


def test_activations_belong_to_the_modules_that_made_them(found: Found) -> None:
    seen = anatomy(found, "forward")

    # What a sum of many numbers needs besides is some hundred bytes.
    flare, tanh = seen.modules
    assert tanh == Part(name="*", kind="Tanh", size_bytes=2 * ROWS, count=2)
    assert (flare.name, flare.kind, flare.size_bytes // KIB, flare.count) == ("3", "Flare", 8 * ROWS // KIB + 1, 1)
    assert (seen.input_bytes, seen.gradient_bytes) == (ROWS, 0)
    assert seen.moment == "the forward pass, in 3"


def test_a_peak_in_the_optimizers_step_has_its_temporary_tensors_and_no_activations(found: Found) -> None:
    seen = anatomy(found, "step")

    assert seen.moment == "the optimizer's step"
    assert seen.parameter_bytes == seen.gradient_bytes == seen.temporary_bytes == 4 * SQUARE
    assert (seen.optimizer_bytes, seen.input_bytes, seen.activation_bytes, seen.modules) == (8 * SQUARE, 0, 0, ())


def test_what_is_computed_between_modules_belongs_to_the_one_around_them(found: Found) -> None:
    seen = anatomy(found, "blocks")

    # Each block keeps the wide tensor; its input is the output of the one before.
    assert seen.modules[0] == Part(name="*", kind="Residual", size_bytes=(3 * 4 + 2) * ROWS, count=3)


def test_a_checkpointed_block_keeps_its_input_and_what_is_computed_once_more_is_an_activation(found: Found) -> None:
    seen = anatomy(found, "checkpoint")

    assert seen.modules[0] == Part(name="*", kind="Residual", size_bytes=(4 + 2) * ROWS, count=3)
    assert seen.temporary_bytes == anatomy(found, "blocks").temporary_bytes


def test_a_checkpoint_of_a_forward_that_no_hook_tells_of_is_the_models(found: Found) -> None:
    seen = anatomy(found, "own checkpoint")

    assert seen.modules[0] == Part(name="model", kind="Checkpointing", size_bytes=(4 + 2) * ROWS)
    assert seen.activation_bytes == anatomy(found, "checkpoint").activation_bytes


def test_tied_weights_count_once_and_a_teacher_counts_with_the_buffers(found: Found) -> None:
    seen = anatomy(found, "student")

    statistics = 2 * 1024 * 4
    assert seen.parameter_bytes == seen.gradient_bytes == SQUARE + statistics  # and as many for its weights
    assert seen.buffer_bytes == SQUARE + statistics + 8  # with the counter of batches


def test_the_flat_weights_of_an_lstm_are_parameters(found: Found) -> None:
    seen = anatomy(found, "lstm")

    weights = 2 * (8 * SQUARE + 8 * 1024 * 4)
    assert (seen.parameter_bytes, seen.gradient_bytes, seen.optimizer_bytes) == (weights, weights, 2 * weights)
    assert (seen.modules[0].name, seen.modules[0].kind) == ("lstm", "LSTM")


def test_under_fp16_weights_gradients_and_state_stay_as_they_are(found: Found) -> None:
    half, full = anatomy(found, "fp16"), anatomy(found, "linear")

    assert half.gradient_bytes == full.gradient_bytes
    assert (half.parameter_bytes, half.optimizer_bytes) == (full.parameter_bytes, full.optimizer_bytes)


def test_the_activations_of_a_compiled_model_are_the_models(found: Found) -> None:
    seen = anatomy(found, "compiled")

    (part,) = seen.modules
    assert (part.name, part.kind, part.size_bytes) == ("model", "Sequential", seen.activation_bytes)
    assert seen.activation_bytes >= ROWS  # what Tanh keeps


@pytest.mark.parametrize(
    ("case", "error", "words"),
    [
        ("records", "WorkloadError", "the allocator's history is not whole: does the workload record, or clear, one"),
        ("raises", "WorkloadError", "in broken: ValueError: no loss today (micro-batch 64)"),
        ("large", "NothingFits", "micro-batch 16384 does not fit: out of memory in the batch's move to the device"),
    ],
)
def test_a_trial_that_does_not_run_says_so_in_one_line(case: str, error: str, words: str, found: Found) -> None:
    assert found[case]["error"] == error
    assert words in found[case]["message"]
    assert "\n" not in found[case]["message"]
    assert found[case]["hooks"] == 0


def test_a_probe_tells_where_its_plans_memory_goes_and_writes_what_memory_viz_opens(cli: Cli) -> None:
    (cli.folder / "memory.pickle").write_text("of an earlier run")

    ran = cli(
        "probe", WORKLOADS / "mlp.py", "--target-batch", "32", "--device", "virtual:600MiB",
        "--snapshot", "memory.pickle", "--json",
    )  # fmt: skip

    plan, parts, confirmed = ran.report["plan"], ran.report["anatomy"], ran.report["samples"][-1]
    assert (parts["micro_batch"], parts["accumulation_steps"]) == (plan["micro_batch"], 2)
    assert parts["reserved_bytes"] == confirmed["peak_reserved_bytes"]
    assert "snapshot  memory.pickle  (pytorch.org/memory_viz shows it)" in ran.err
    shown = cli("show", Path("results") / next((cli.folder / "results").iterdir()).name).out
    assert "Activations by module" in shown
    assert "When most is in use: in " in shown
    drawn = drawn_by_memory_viz(cli.folder / "memory.pickle")
    assert drawn == ["trace_plot", "segment_plot", "segsum", "trace"]


def drawn_by_memory_viz(path: Path) -> list[str]:
    """Have PyTorch's own tool draw the file in every way that it knows; give those that worked."""
    with path.open("rb") as file:
        history = pickle.load(file)
    frames = [frame for event in history["device_traces"][0] for frame in event.get("frames", ())]
    assert any(frame["filename"].endswith("modules/linear.py") for frame in frames)
    code = (
        "import pickle, sys; from torch.cuda import _memory_viz as viz; data = pickle.load(open(sys.argv[1], 'rb'))\n"
        "for name in ('trace_plot', 'segment_plot', 'segsum', 'trace'): assert getattr(viz, name)(data); print(name)"
    )
    environment = {**os.environ, **virtual.environment(virtual.parse("1GiB"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, path], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_a_worker_that_is_lost_over_it_costs_a_warning_and_not_the_plan(cli: Cli, workload: WriteWorkload) -> None:
    # The second process confirms; it builds its optimizer once more for what comes after.
    path = workload(
        """
        import signal
        built = []

        def build_optimizer(model):
            built.append(1)
            if processes() == 2 and len(built) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.optim.SGD(model.parameters(), 0.1)
        """,
        base=WIDE,
    )

    ran = cli("probe", path, "--target-batch", "4", "--device", "virtual:1GiB", "--snapshot", "x.pickle", "--json")

    assert (ran.code, ran.report["status"], ran.report["anatomy"]) == (0, "planned", None)
    assert ran.report["plan"]["effective_batch"] == 4
    lost = "where the memory goes is not known: taking memory apart did not end: "
    assert [warning for warning in ran.report["warnings"] if warning.startswith(lost)]
    assert not list(cli.folder.glob("*.pickle"))
    assert "snapshot  " not in ran.err

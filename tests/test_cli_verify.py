"""`autoaccum verify` as people run it: one line, the exit code, and nothing else on stdout."""

from __future__ import annotations

import json

import pytest

import autoaccum
from tests.conftest import Cli, WriteWorkload
from tests.test_cli_errors import check

CHATTY = """
    print("loading"); sys.stderr.write("noise\\n")

    def loss(model, batch):
        print("in the loss")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
NAMED = """
    import torch, autoaccum
    from torch import nn

    print("loading")

    def summed():
        return autoaccum.Workload(
            build_model=lambda: nn.Linear(64, 8),
            make_batch=lambda size: (torch.randn(size, 64), torch.randint(8, (size,))),
            loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"),
        )
"""
NORMED = "def build_model(): return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout())"


def test_an_equivalent_workload_is_one_line_and_exit_code_0(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("verify", workload(CHATTY))

    assert ran.code == 0, ran.err
    assert ran.out == (
        "equivalent  accumulated micro-batches give the full batch's gradient: the loss is a mean over the samples\n"
    )
    assert "noise" not in ran.err
    assert [line.split()[0] for line in ran.err.splitlines()] == ["error", "weights"]


def test_a_coupled_workload_is_exit_code_1_with_its_details(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("verify", workload(NORMED))

    assert ran.code == 1, ran.err
    assert ran.out.startswith("not equivalent  layer 1 (BatchNorm1d) couples the samples of a batch")
    assert len(ran.out.splitlines()) == 1
    assert "buffers  1.running_mean, 1.running_var, 1.num_batches_tracked: updated once for each" in ran.err
    assert "random  bernoulli_ in layer 2 (Dropout): held at the mean" in ran.err


def test_rows_that_are_all_alike_are_exit_code_2_and_quiet_is_quiet(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("verify", workload("def make_batch(size): return torch.ones(size, 64), torch.ones(size).long()"), "-q")

    assert (ran.code, ran.err) == (2, "")
    assert ran.out == "inconclusive  the batch has to have 6 different rows and has 1: give varied data\n"


def test_json_is_the_verdict_and_nothing_else(cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("verify", f"{workload(base=NAMED)}:summed", "--json", "-v")

    assert ran.code == 1, ran.err
    verdict = json.loads(ran.out)
    assert (verdict["verdict"], verdict["kind"], verdict["split"]) == ("not_equivalent", "sum", [5, 4, 3])
    assert verdict["weights"] == pytest.approx([1, 1, 1])
    assert "loading" in ran.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def loss(model, batch): return batch[0] @ batch[0]", "model.py:10 in loss: RuntimeError"),
        ("def make_batch(size): return 'text'", "make_batch(12) returned no tensor: it returned str"),
        ("def loss(model, batch): sys.exit(3)", "in loss: called sys.exit(3)"),
        ("def build_model(): os._exit(7)", "verifying did not end: the workload ended its own process (exit code 7)"),
        ("def f(:", "model.py:10: syntax error"),
    ],
)
def test_a_broken_workload_is_told_in_one_line(text: str, words: str, cli: Cli, workload: WriteWorkload) -> None:
    ran = cli("verify", workload(text))

    check(ran, 4, words)
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""


def test_a_hanging_workload_is_ended(workload: WriteWorkload) -> None:
    with pytest.raises(autoaccum.WorkloadError, match=r"no answer within 0\.5 s; raise --timeout"):
        autoaccum.verify(workload("def build_model(): time.sleep(60)"), timeout=0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["gone.py"], "there is no file gone.py"),
        (["model.py", "--seed", "-1"], "--seed must be between"),
        (["model.py", "--timeout", "0"], "--timeout must be"),
    ],
)
def test_a_wrong_option_is_a_usage_error(options: list[str], words: str, cli: Cli, workload: WriteWorkload) -> None:
    workload()

    check(cli("verify", *options), 2, words)

"""autoaccum rehearse where there can be no virtual GPU, and what is wrong with a command before anything is started."""

from __future__ import annotations

import pytest

import autoaccum
from autoaccum.errors import DeviceError
from autoaccum.virtual import wheel
from tests.conftest import Cli, WriteWorkload
from tests.test_cli_errors import check


@pytest.fixture
def cpu_torch() -> None:
    try:
        wheel.find()
    except DeviceError:
        return
    pytest.skip("this torch is a CUDA build")


def test_a_cpu_only_torch_is_told_what_to_install(cpu_torch: None, cli: Cli, workload: WriteWorkload) -> None:
    workload()

    ran = cli("rehearse", "model.py", "--target-batch", "8", "--gpu", "l4")

    check(ran, 5, "the virtual GPU needs a CUDA build of PyTorch")
    assert "pip install --no-deps" in ran.error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["gone.py", "--target-batch", "8"], "there is no file gone.py"),
        (["model.py", "--gpu", "l4"], "Missing option '--target-batch'"),
        (["model.py", "--target-batch", "0"], "--target-batch must be a whole number of 1 or more, not 0"),
        (["model.py", "--target-batch", "8", "--gpu", "h100-80bg"], 'unknown GPU "h100-80bg": did you mean h100-80gb?'),
        (["model.py", "--target-batch", "8", "--gpu", "a100"], "write a100-40gb or a100-80gb"),
        (["model.py", "--target-batch", "8", "--gpu", ""], "no GPU is named"),
        (["model.py", "--target-batch", "8", "--gpu", "24"], '"24" has no unit: write 24GiB for a size'),
        (["model.py", "--target-batch", "8", "--gpu", "l4", "--what-if", "bf16+fp16"], "sets precision twice"),
        (["model.py", "--target-batch", "9", "--world-size", "2"], "take 8 or 10"),
        (["model.py", "--target-batch", "8", "--snapshot", "gone/x.pickle"], "--snapshot gone/x.pickle: there is no"),
        (["model.py", "--target-batch", "8", "--memory-budget", "150%"], "at most 100%"),
    ],
)
def test_a_wrong_option_is_a_usage_error(options: list[str], words: str, cli: Cli, workload: WriteWorkload) -> None:
    workload()

    ran = cli("rehearse", *options)

    check(ran, 2, words)
    assert len(ran.err.splitlines()) == 1
    assert not (cli.folder / "results").exists()


def test_from_python_a_mistake_is_an_error_of_ours(workload: WriteWorkload) -> None:
    with pytest.raises(autoaccum.UsageError, match=r"did you mean l40\?"):
        autoaccum.rehearse(workload(), target_batch=8, gpu=["l40z"])

"""Other settings of torch's allocator: the meter stays right and the probe works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli, WriteWorkload

from .conftest import WIDE

pytestmark = pytest.mark.gpu

SETTINGS = ["expandable_segments:True", "max_split_size_mb:64", "backend:cudaMallocAsync"]
# Looks at the device where most is held: in the middle of loss(), and after a step, when what is cached is still held.
RECORDING = """
    def record(size):
        with (HERE / "used").open("a") as lines:
            lines.write(f"{os.getpid()} {size} {control.used_bytes()}\\n")

    class Recording(torch.optim.SGD):
        def step(self):
            super().step()
            record(self.size)

    def loss(model, batch):
        optimizer.size = len(batch)
        result = forward(model, batch)
        most = torch.empty(len(batch), 96 << 20, dtype=torch.uint8, device=batch.device)
        record(len(batch))
        return result

    def build_optimizer(model):
        global optimizer
        optimizer = Recording(model.parameters(), 0.1)
        return optimizer
"""


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_meter_agrees_with_the_device_whatever_the_allocator(
    setting: str, cli: Cli, workload: WriteWorkload, tmp_path: Path
) -> None:
    path = workload(RECORDING, base=WIDE)

    ran = cli(
        "probe", path, "--target-batch", "16", "--device", "virtual:2GiB", "--json",
        PYTORCH_ALLOC_CONF=setting, PYTORCH_CUDA_ALLOC_CONF=setting,
    )  # fmt: skip

    assert ran.code == 0, ran.err
    assert ran.report["environment"]["alloc_conf"] == setting
    assert ran.report["plan"]["effective_batch"] == 16
    assert ran.report["plan"]["accumulation_steps"] > 1
    held = [tuple(map(int, line.split())) for line in (tmp_path / "used").read_text().splitlines()]
    measured = [sample for sample in ran.report["samples"] if sample["outcome"] == "ok"]
    assert len(measured) > 2
    assert [s["device_used_bytes"] for s in measured] == [_most_held(held, s) for s in measured]
    _check_anatomy(ran.report)


def _check_anatomy(report: dict[str, Any]) -> None:
    """See that it is there where the allocator has a history, and as large as what was confirmed."""
    if "cudaMallocAsync" in report["environment"]["alloc_conf"]:
        assert report["anatomy"] is None
        why = "the allocator of cudaMallocAsync keeps no history: use PyTorch's own"
        assert f"where the memory goes is not known: {why}" in report["warnings"]
    else:
        assert report["anatomy"]["reserved_bytes"] == report["samples"][-1]["peak_reserved_bytes"]


def _most_held(held: list[tuple[int, ...]], sample: dict[str, Any]) -> int:
    """Give the most that the device held during the sample's trial; confirming trials have processes of their own."""
    searching = held[0][0]
    in_search = sample["phase"] != "confirm"
    return max(used for pid, size, used in held if size == sample["micro_batch"] and (pid == searching) == in_search)

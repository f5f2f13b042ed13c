"""The child of test_anatomy.py: many trials, each of a model of its own, taken apart in one process.

python -m tests.gpu.dissecting '[{"name": ..., "trial": {...}}, ...]'

It prints a JSON object for each: what the trial showed before, its anatomy or the error, and what is left of it.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

from autoaccum.anatomy.dissect import dissect
from autoaccum.device import open_device
from autoaccum.device.base import Device
from autoaccum.errors import AutoaccumError
from autoaccum.records import Trial
from autoaccum.subject import FileSubject
from autoaccum.trial import Runner

WORKLOADS = Path(__file__).parent / "workloads" / "anatomy.py"


def main() -> None:
    device = open_device("virtual:8GiB")
    gc.freeze()  # all of torch would be searched for cycles each time
    for order in json.loads(sys.argv[1]):
        print(json.dumps(_dissected(order, device)), flush=True)
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()


def _dissected(order: dict[str, Any], device: Device) -> dict[str, Any]:
    subject = FileSubject(f"{WORKLOADS}:{order['name']}", device, seed=0)
    runner = Runner(subject, device, order.get("limit_bytes", 7 << 30))
    trial = Trial.from_dict(order["trial"])
    sample = runner.run(1, trial)
    try:
        found: dict[str, Any] = {"anatomy": dissect(subject, runner, device, trial, None).to_dict()}
    except AutoaccumError as error:
        found = {"error": type(error).__name__, "message": str(error)}
    modules = list(subject.parts().model.modules())
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules)
    return {**found, "sample": sample.to_dict(), "hooks": hooks, "again": runner.run(2, trial).outcome}


if __name__ == "__main__":
    main()

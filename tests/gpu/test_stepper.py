"""The training step on a GPU that really runs out of memory: what it recovers from, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from autoaccum.units import GIB, MIB
from autoaccum.virtual import VirtualGpu

from .conftest import Rig

pytestmark = pytest.mark.gpu

# 16 MiB of activations for each row and layer.
PRELUDE = """
    import json, sys, warnings
    import torch
    from torch import nn
    from autoaccum import Plan
    from autoaccum.virtual import control

    MIB = 1 << 20
    warnings.simplefilter("always")

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.zeros(8 * MIB))
            self.norm = nn.BatchNorm1d(1)
            self.drop = nn.Dropout(0.5)
        def forward(self, x):
            return self.drop((self.norm(x) * self.weights[: 4 * MIB]).exp())

    def loss(model, batch):
        return model(batch).mean()

    model = Wide().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
"""

RunScript = Callable[..., dict[str, Any]]


@pytest.fixture
def script(rig: Rig) -> RunScript:
    """Run Python on a virtual GPU and give what it reported with `print(json.dumps(...))` last."""

    def run(code: str, **description: Any) -> dict[str, Any]:
        environment = rig(VirtualGpu(**{"total_bytes": 2 * GIB, **description}))
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run


def test_a_micro_batch_that_does_not_fit_is_split_until_it_does(script: RunScript) -> None:
    found = script("""
        step = Plan.of(target_batch=64, micro_batch=64).stepper(model, optimizer, loss)
        with warnings.catch_warnings(record=True) as caught:
            first, second = step(torch.zeros(64, 1)), step(torch.zeros(64, 1))
        print(json.dumps(dict(
            first=first.micro_batches, second=second.micro_batches, warned=len(caught),
        )))
    """)

    assert sum(found["first"]) == sum(found["second"]) == 64
    assert len(found["first"]) > 1
    assert found["first"] == found["second"]
    assert found["warned"] >= 1


def test_a_neighbour_that_grows_in_the_middle_of_training_is_adapted_to(script: RunScript) -> None:
    found = script("""
        step = Plan.of(target_batch=32, micro_batch=8).stepper(model, optimizer, loss)
        before = step(torch.zeros(32, 1))
        control.set_other_bytes(1200 * MIB)
        torch.cuda.empty_cache()
        with warnings.catch_warnings(record=True) as caught:
            after = step(torch.zeros(32, 1))
        print(json.dumps(dict(before=before.micro_batches, after=after.micro_batches, warned=str(caught[0].message))))
    """)

    assert found["before"] == [8, 8, 8, 8]
    assert sum(found["after"]) == 32
    assert max(found["after"]) < 8
    assert "micro-batch 8 ran out of memory (CUDA out of memory" in found["warned"]


def test_a_replayed_window_draws_the_devices_random_numbers_again(script: RunScript) -> None:
    found = script("""
        states, calls = [], []
        def failing(model, batch):
            states.append(torch.cuda.get_rng_state().sum().item())
            value = loss(model, batch)
            calls.append(len(batch))
            if len(calls) == 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return value
        Plan.of(target_batch=8, micro_batch=4).stepper(model, optimizer, failing)(torch.zeros(8, 1))
        print(json.dumps(dict(states=states, calls=calls)))
    """)

    assert found["calls"] == [4, 4, 3, 3, 2]
    assert found["states"][2] == found["states"][0]
    assert found["states"][1] != found["states"][0]


def test_a_model_that_fits_no_sample_says_so(script: RunScript) -> None:
    found = script(
        """
        from autoaccum import NothingFits
        model.norm.eval()  # it refuses a single sample
        control.set_other_bytes(700 * MIB)
        torch.cuda.empty_cache()
        try:
            Plan.of(target_batch=4, micro_batch=2).stepper(model, optimizer, loss)(torch.zeros(4, 1))
        except NothingFits as error:
            print(json.dumps(dict(error=str(error))))
        """,
        total_bytes=1 * GIB,
    )

    assert found["error"].startswith("not even one sample fits in memory: CUDA out of memory")


def test_the_peak_is_that_of_the_loop_written_by_hand(script: RunScript) -> None:
    found = script("""
        def by_hand(batch):
            for part in batch.split(8):
                (loss(model, part.cuda()) * len(part) / len(batch)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        step = Plan.of(target_batch=32, micro_batch=8).stepper(model, optimizer, loss, clip=1.0)
        peaks = {}
        for name, update in (("hand", by_hand), ("stepper", step)):
            update(torch.zeros(32, 1))
            torch.cuda.reset_peak_memory_stats()
            update(torch.zeros(32, 1))
            peaks[name] = torch.cuda.max_memory_allocated()
        print(json.dumps(peaks))
    """)

    assert found["hand"] > 32 * MIB
    assert found["stepper"] <= found["hand"] + MIB

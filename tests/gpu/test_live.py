"""Live objects on a GPU: the budget is kept, and the device is left as it was."""

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

# A model in the middle of its training on the GPU, and what must not change.
TRAINING = """
    import json, os, signal, sys, warnings
    import torch
    from torch import nn
    import autoaccum
    from tests.everything import everything

    warnings.simplefilter("ignore")
    device = torch.device(sys.argv[1])
    model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 8)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 64), torch.randint(8, (4,))

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def step():
        optimizer.zero_grad()
        loss(model, [part.to(device) for part in batch]).backward()
        optimizer.step()

    def state():
        torch.cuda.synchronize()
        return {
            **everything(model, optimizer),
            "allocated": torch.cuda.memory_allocated(device),
            "current": torch.cuda.current_device(),
            "fraction": torch.cuda.get_per_process_memory_fraction(device),
        }

    def plan(**more):
        given = {"optimizer": optimizer, "target_batch": 65536, "memory_budget": "768MiB", **more}
        return autoaccum.plan(model, given.pop("loss", loss), batch, **given)

    def answer(**found):
        found["changed"] = [key for key, value in state().items() if before[key] != value]
        print(json.dumps(found))
"""

RunLive = Callable[..., Any]


@pytest.fixture
def run_live(rig: Rig) -> RunLive:
    """Run a program on a virtual GPU, or on the second of two; give what it answers."""

    def run(program: str, device: str = "cuda:0") -> Any:
        gpus = [VirtualGpu(total_bytes=2 * GIB)] * (1 if device == "cuda:0" else 2)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(TRAINING) + textwrap.dedent(program), device],
            env={**os.environ, **rig(gpus)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_the_plan_keeps_the_budget_and_everything_is_as_before(run_live: RunLive) -> None:
    found = run_live("""
        step()
        before = state()
        found = plan()
        answer(peak=found.peak_bytes, steps=found.accumulation_steps, sum=sum(found.micro_batches))
    """)

    assert found["peak"] <= 768 * MIB
    assert found["steps"] > 1
    assert found["sum"] == 65536
    assert found["changed"] == []


def test_a_model_without_optimizer_state_leaves_nothing_behind(run_live: RunLive) -> None:
    found = run_live("""
        loss(model, [part.to(device) for part in batch]).backward()
        optimizer.zero_grad()
        before = state()
        plan()
        answer(state=len(optimizer.state), grads=[p.grad is None for p in model.parameters()])
    """)

    assert found["state"] == 0
    assert all(found["grads"])
    assert found["changed"] == []


def test_the_memory_fraction_of_the_user_holds_and_comes_back(run_live: RunLive) -> None:
    found = run_live("""
        torch.cuda.set_per_process_memory_fraction(0.25, device)
        step()
        before = state()
        class Notes:  # a list that the loss holds itself would be put back, too
            seen = ()

        def spy(model, batch):
            Notes.seen += (torch.cuda.get_per_process_memory_fraction(device),)
            return loss(model, batch)

        plan(loss=spy, memory_budget="1536MiB")
        answer(seen=Notes.seen, fraction=torch.cuda.get_per_process_memory_fraction(device))
    """)

    assert set(found["seen"]) == {0.25}
    assert found["fraction"] == 0.25
    assert found["changed"] == []


def test_the_limit_is_set_during_trials(run_live: RunLive) -> None:
    found = run_live("""
        step()
        before = state()
        seen = []

        def spy(model, batch):
            seen.append(torch.cuda.get_per_process_memory_fraction(device))
            return loss(model, batch)

        plan(loss=spy, target_batch=4)
        answer(seen=seen)
    """)

    context = VirtualGpu(total_bytes=2 * GIB).context_bytes
    assert found["seen"] == pytest.approx([(768 * MIB - context) / (2 * GIB)] * len(found["seen"]))
    assert found["changed"] == []


def test_another_current_device_stays_current(run_live: RunLive) -> None:
    found = run_live(
        """
        step()
        torch.cuda.set_device(0)
        before = state()
        found = plan()
        answer(current=torch.cuda.current_device(), steps=found.accumulation_steps)
        """,
        device="cuda:1",
    )

    assert found["current"] == 0
    assert found["steps"] > 1
    assert found["changed"] == []


@pytest.mark.parametrize("how", ["raise ValueError", "raise KeyboardInterrupt", "os.kill(os.getpid(), signal.SIGINT)"])
def test_everything_is_as_before_when_a_trial_is_broken_off(run_live: RunLive, how: str) -> None:
    found = run_live(f"""
        step()
        before = state()

        def breaking(model, batch):
            value = loss(model, batch)
            if len(batch[0]) >= 8:
                {how}
            return value

        try:
            plan(loss=breaking)
        except (KeyboardInterrupt, autoaccum.WorkloadError) as error:
            caught = type(error).__name__
        answer(caught=caught)
    """)

    assert found["caught"] == ("WorkloadError" if "ValueError" in how else "KeyboardInterrupt")
    assert found["changed"] == []

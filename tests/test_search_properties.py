"""Whatever memory is like: the line from search to confirm on imagined devices, for any model, budget and target."""

from __future__ import annotations

import random
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from autoaccum.errors import NothingFits
from autoaccum.lab import Lab
from autoaccum.planning import Found, find_plans
from autoaccum.records import Budget, Request, Trial
from autoaccum.solve import candidates

from .imagined import DEVICE, Imagined, ImaginedLab

always = settings(max_examples=300, deadline=None, derandomize=True, database=None)
MIB = 1 << 20


@st.composite
def devices(draw: st.DrawFn, noise: float) -> Imagined:
    """Give a device: a maximum of lines, with a share of waste that differs from size to size by `noise` at most.

    Where there is noise every size wastes two percent, as the allocator of a GPU does.
    """
    weights = draw(st.integers(1, 2000)) * MIB
    state = draw(st.sampled_from([0, 1, 2])) * weights
    seed, typical = draw(st.integers(0, 10**6)), draw(st.floats(0.02 if noise else 0.0, 0.15))
    return Imagined(
        limit_bytes=draw(st.integers(1, 64 * 1024)) * MIB,
        overhead=draw(st.integers(0, 1500)) * MIB,
        resident=2 * weights + state,
        gradients=weights,
        each=draw(st.integers(1, 2000)) * MIB,
        step=draw(st.sampled_from([0, 0, 1, 2])) * weights,
        slack=lambda size: typical + random.Random(seed * 7919 + size).uniform(0, noise),
        loose=draw(st.sampled_from([0.0, 0.1, 0.4])),
    )


def line(device: Imagined, target: int, split: str, lab: ImaginedLab | None = None) -> tuple[Found, ImaginedLab]:
    lab = ImaginedLab(device=device) if lab is None else lab
    request = Request(workload="x", target_batch=target, split=split)
    budget = Budget(limit_bytes=device.limit_bytes, reserve_bytes=0, source="user")
    return find_plans(request, cast(Lab, lab), DEVICE, budget), lab


def fewest(device: Imagined, target: int, split: str) -> int | None:
    """The fewest steps of all plans whose size fits, and all smaller ones: what no luck is needed for."""
    if device.fits(target, 1):
        return 1
    sizes = candidates(target, split)
    fitting = [size for size in sizes if all(device.fits(each, 2) for each in sizes if each <= size)]
    return -(-target // fitting[-1]) if fitting else None


def steps_of_a_plan_that_ran(device: Imagined, target: int, split: str) -> int | None:
    """Give the steps of the answer, which is exact and has run; None where nothing fits."""
    try:
        found, lab = line(device, target, split)
    except NothingFits:
        return None
    plan = found.plans[0]
    assert sum(plan.micro_batches) == target
    assert any(s.ok and s.phase == "confirm" and s.micro_batch == plan.micro_batch for s in lab.samples)
    return plan.accumulation_steps


targets = st.integers(1, 600) | st.sampled_from([64, 97, 128, 509, 512, 1000, 2048])
splits = st.sampled_from(["even", "uneven"])


@always
@given(devices(noise=0.0), targets, splits)
def test_without_noise_the_plan_is_exact_feasible_and_has_the_fewest_steps(
    device: Imagined, target: int, split: str
) -> None:
    best = fewest(device, target, split)
    steps = steps_of_a_plan_that_ran(device, target, split)

    assert steps == best


@always
@given(devices(noise=0.02), targets, splits)
def test_with_some_percent_of_noise_no_plan_that_fits_safely_has_fewer_steps(
    device: Imagined, target: int, split: str
) -> None:
    best = fewest(device, target, split)
    steps = steps_of_a_plan_that_ran(device, target, split)

    assert best is None or (steps is not None and steps <= best)


@always
@given(devices(noise=0.03), targets, st.integers(0, 10**6), st.sampled_from([0.1, 0.5]))
def test_where_sizes_fail_by_chance_what_is_returned_has_run(
    device: Imagined, target: int, seed: int, share: float
) -> None:
    def refuses(trial: Trial) -> bool:
        return random.Random(seed + trial.micro_batch * 2 + (trial.phase == "confirm")).random() < share

    lab = ImaginedLab(device=device, refuses=refuses)
    try:
        found, _ = line(device, target, "uneven", lab)
    except NothingFits:
        return

    plan = found.plans[0]
    assert sum(plan.micro_batches) == target
    assert any(s.ok and s.phase == "confirm" and s.micro_batch == plan.micro_batch for s in lab.samples)


@always
@given(devices(noise=0.02), targets, splits)
def test_the_certificate_is_true(device: Imagined, target: int, split: str) -> None:
    try:
        found, lab = line(device, target, split)
    except NothingFits:
        return

    proof = found.certificate
    assert proof is not None
    assert any(s.ok and s.micro_batch == proof.micro_batch for s in lab.samples)
    if proof.basis == "target":
        assert proof.micro_batch == max(candidates(target, split))
    elif proof.basis == "predicted":
        assert proof.next_micro_batch is not None
        assert not device.fits(proof.next_micro_batch, 2)
    else:
        assert any(not s.ok and s.micro_batch == proof.next_micro_batch for s in lab.samples)
